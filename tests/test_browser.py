"""The page in a real browser with the network off: Chromium, spoken to by its DevTools protocol over a pipe."""

import json
import os
import re
import select
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coupledqk.report.chart import Series, line_chart
from coupledqk.report.runs_page import Sample, write_page
from test_report import HOSTILE, make_run

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --disable-dev-shm-usage --no-first-run --hide-scrollbars "
    "--disable-background-networking --disable-component-update --disable-sync --remote-debugging-pipe"
)
PATIENCE = 60


class Browser:
    """One headless browser; `call` sends a command, `events` holds what the page has told since it was opened."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM
        (commands, self.write), (self.read, replies) = os.pipe(), os.pipe()

        def take_pipes() -> None:
            for end, expected in ((commands, 3), (replies, 4)):
                os.dup2(end, expected)
                os.set_inheritable(expected, True)

        self.process = subprocess.Popen(
            [CHROMIUM, *FLAGS.split(), f"--user-data-dir={profile}"],
            close_fds=False,
            preexec_fn=take_pipes,
            start_new_session=True,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(replies)
        self.buffer, self.count, self.session = b"", 0, {}
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self.count += 1
        command = {"id": self.count, "method": method, "params": parameters, **self.session}
        os.write(self.write, json.dumps(command).encode() + b"\0")
        while (message := self.receive()).get("id") != self.count:
            self.events.append(message)
        assert "error" not in message, message
        return message["result"]

    def receive(self) -> dict[str, Any]:
        while b"\0" not in self.buffer:
            assert select.select([self.read], [], [], PATIENCE)[0], "the browser does not answer"
            self.buffer += os.read(self.read, 1 << 20)
        message, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(message)

    def open(self, page: Path, width: int = 1000, scheme: str = "light") -> None:
        self.session = {}
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = {"sessionId": self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]}
        self.events.clear()
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=0, uploadThroughput=0)
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=width < 500
        )
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Page.navigate", url=page.as_uri())
        while not self.heard("Page.loadEventFired"):
            self.events.append(self.receive())

    def heard(self, method: str) -> list[dict[str, Any]]:
        return [event["params"] for event in self.events if event.get("method") == method]

    def evaluate(self, expression: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def point_at(self, selector: str, across: float) -> None:
        """Moves the mouse to a fraction of an element's width, at half its height."""
        self.evaluate(f"document.querySelector({selector!r}).scrollIntoView({{block: 'center'}})")
        box = self.evaluate(f"document.querySelector({selector!r}).getBoundingClientRect().toJSON()")
        x, y = box["x"] + across * box["width"], box["y"] + box["height"] / 2
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def close(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.read)
        os.close(self.write)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("chromium is not installed, so no page was looked at: apt-get install chromium")
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo")
    runs = [make_run(folder / name, name) for name in ("standard", "euler", "diff")]
    samples = [Sample(run.name, "def read_lines(path):\n", "    " + "x" * 300 + HOSTILE) for run in runs]
    write_page(runs, folder / "report.html", "Three variants", ["An introduction. " * 9, HOSTILE], samples)
    return folder / "report.html"


def test_the_page_draws_its_curves_without_a_complaint_or_a_request(browser: Browser, page: Path) -> None:
    browser.open(page)
    lengths = browser.evaluate("[...document.querySelectorAll('.series .line')].map(line => line.getTotalLength())")
    assert len(lengths) == 6
    assert all(length > 100 for length in lengths)
    assert browser.evaluate("document.querySelectorAll('table.results tbody tr').length") == 3
    for complaint in ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown"):
        assert browser.heard(complaint) == []
    assert [request["request"]["url"] for request in browser.heard("Network.requestWillBeSent")] == [page.as_uri()]


def test_the_pages_policy_stops_a_script_and_a_request_that_got_in(browser: Browser, page: Path) -> None:
    injected = "<script>document.title = 'taken'</script><img src='https://example.org/x.png'></main>"
    tampered = page.with_name("tampered.html")
    tampered.write_text(page.read_text("utf-8").replace("</main>", injected), "utf-8")
    browser.open(tampered)
    assert browser.evaluate("document.title") == "Three variants"
    refused = [entry["entry"]["text"] for entry in browser.heard("Log.entryAdded")]
    assert sum("Content Security Policy" in text for text in refused) == 2


def test_pointing_at_a_curve_shows_the_values_there(browser: Browser, page: Path) -> None:
    browser.open(page)
    readout = "document.querySelectorAll('.readout')[1]"
    assert not browser.evaluate(f"{readout}.checkVisibility()")
    browser.point_at(".plot:nth-of-type(2) svg", across=0.9)
    browser.point_at(".plot:nth-of-type(2) svg", across=0.55)
    assert browser.evaluate(f"{readout}.checkVisibility()")
    shown = browser.evaluate(f"{readout}.innerText").split()
    assert shown == ["step", "200", "standard", "49.402", "euler", "49.402", "diff", "49.402"]  # exp(3.9)
    browser.point_at("h1", across=0.5)
    assert not browser.evaluate(f"{readout}.checkVisibility()")


@pytest.mark.parametrize("width", [320, 360, 700, 1400])
def test_nothing_sticks_out_sideways(width: int, browser: Browser, page: Path) -> None:
    browser.open(page, width)
    browser.point_at(".plot svg", across=0.5)
    assert browser.evaluate("document.documentElement.scrollWidth") == width
    blocks = "[...document.querySelectorAll('h1, h2, p, pre, svg, .wide, .readout, dd')]"
    assert max(browser.evaluate(f"{blocks}.map(block => block.getBoundingClientRect().right)")) <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_the_paper(scheme: str, browser: Browser, page: Path) -> None:
    browser.open(page, scheme=scheme)
    colours = """[...document.querySelectorAll('p, .note, td, th, pre, .prompt, figcaption, .chart text')].map(e => {
        const style = getComputedStyle(e);
        return e instanceof SVGElement ? style.fill : style.color;
    })"""
    paper = luminance(browser.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert paper > 0.9 if scheme == "light" else paper < 0.02
    for colour in set(browser.evaluate(colours)):
        dim, bright = sorted([luminance(colour), paper])
        assert (bright + 0.05) / (dim + 0.05) >= 4.5, f"{colour} in {scheme} mode"


def luminance(colour: str) -> float:
    """The relative luminance of "rgb(r, g, b)", as the accessibility guidelines define it."""
    channels = [int(part) / 255 for part in re.findall(r"\d+", colour)]
    r, g, b = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def test_a_chart_stands_alone_as_a_file(browser: Browser, tmp_path: Path) -> None:
    sweep = [Series("standard", [(1e-4, 4.1), (1e-3, 3.7), (1e-2, 4.2)]), Series("euler", [(1e-4, 4.2), (1e-3, 3.6)])]
    (tmp_path / "sweep.svg").write_text(line_chart(sweep, "learning rate", "loss", log_x=True, title="Sweep"), "utf-8")
    browser.open(tmp_path / "sweep.svg")
    assert browser.evaluate("document.documentElement.tagName") == "svg"
    assert browser.evaluate("getComputedStyle(document.querySelector('.line')).stroke") == "rgb(0, 114, 178)"
    assert browser.heard("Log.entryAdded") == []
