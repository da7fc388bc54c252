"""A real browser with the network off: Chromium, controlled by the DevTools protocol over a pipe."""

import base64
import json
import os
import re
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# On Ubuntu chromium-browser is a snap, which has no access to /tmp, so it is the last choice.
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --disable-dev-shm-usage --no-first-run --hide-scrollbars "
    "--disable-background-networking --disable-component-update --disable-sync --remote-debugging-pipe"
)
PATIENCE = 60


class Browser:
    """A headless browser. `call` sends a command; `events` contains the events since the page was opened."""

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

    def open(self, page: Path | str, width: int = 1000, scheme: str = "light") -> None:
        """Opens a file with the network off, or a URL with the network on."""
        self.session = {}
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = {"sessionId": self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]}
        self.events.clear()
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        if isinstance(page, Path):
            limits = {"latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
            self.call("Network.emulateNetworkConditions", offline=True, **limits)
        self.resize(width)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Page.navigate", url=page.as_uri() if isinstance(page, Path) else page)
        while not self.events_of("Page.loadEventFired"):
            self.events.append(self.receive())

    def resize(self, width: int, height: int = 800) -> None:
        mobile = width < 500
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)

    def events_of(self, method: str) -> list[dict[str, Any]]:
        return [event["params"] for event in self.events if event.get("method") == method]

    def evaluate(self, expression: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def point_at(self, selector: str, across: float = 0.5, down: float = 0.5) -> tuple[float, float]:
        """Moves the mouse to a fraction of an element's width and height."""
        self.evaluate(f"document.querySelector({selector!r}).scrollIntoView({{block: 'center'}})")
        box = self.evaluate(f"document.querySelector({selector!r}).getBoundingClientRect().toJSON()")
        x, y = box["x"] + across * box["width"], box["y"] + down * box["height"]
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        return x, y

    def click(self, selector: str, across: float = 0.5, down: float = 0.5) -> None:
        x, y = self.point_at(selector, across, down)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key: str) -> None:
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def wait_for(self, expression: str) -> None:
        """Waits until a condition on the page holds."""
        for _ in range(PATIENCE * 50):
            if self.evaluate(expression):
                return
            time.sleep(0.02)
        raise AssertionError(f"waited {PATIENCE} s for {expression}")

    def console(self) -> list[dict[str, Any]]:
        """The messages on the console of the page."""
        kinds = ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown")
        return [entry for kind in kinds for entry in self.events_of(kind)]

    def requests(self) -> list[str]:
        """The URLs that the page has requested."""
        return [request["request"]["url"] for request in self.events_of("Network.requestWillBeSent")]

    def assert_fits(self, width: int, selector: str) -> None:
        """No element that matches the selector exceeds the width of the page."""
        assert self.evaluate("document.documentElement.scrollWidth") == width
        blocks = f"[...document.querySelectorAll({selector!r})].map(block => block.getBoundingClientRect().right)"
        assert max(self.evaluate(blocks)) <= width

    def assert_legible(self, scheme: str, selector: str) -> None:
        """The text of elements that match the selector has a contrast of at least 4.5 to the background."""
        colours = f"""[...document.querySelectorAll({selector!r})].map(e => {{
            const style = getComputedStyle(e);
            return e instanceof SVGElement ? style.fill : style.color;
        }})"""
        paper = luminance(self.evaluate("getComputedStyle(document.body).backgroundColor"))
        assert paper > 0.9 if scheme == "light" else paper < 0.02
        for colour in set(self.evaluate(colours)):
            dim, bright = sorted([luminance(colour), paper])
            assert (bright + 0.05) / (dim + 0.05) >= 4.5, f"{colour} in {scheme} mode"

    def screenshot(self, file: Path) -> None:
        """Saves an image of the page for manual inspection."""
        image = self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        file.write_bytes(base64.b64decode(image))

    def close(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.read)
        os.close(self.write)


def running_browser(profile: Path) -> Iterator[Browser]:
    """A running browser, for a fixture to `yield from`."""
    if CHROMIUM is None:
        pytest.skip("chromium is not installed, so no page was looked at: apt-get install chromium")
    browser = Browser(profile)
    yield browser
    browser.close()


def luminance(colour: str) -> float:
    """The relative luminance of "rgb(r, g, b)", as the accessibility guidelines define it."""
    channels = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    r, g, b = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * r + 0.7152 * g + 0.0722 * b
