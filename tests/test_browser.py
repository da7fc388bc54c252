"""The report page in a real browser with the network off."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from browser import Browser, running_browser
from coupledqk.report.chart import Series, line_chart
from coupledqk.report.runs_page import Sample, write_page
from test_report import HOSTILE, make_run


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    yield from running_browser(tmp_path_factory.mktemp("profile"))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo")
    runs = [make_run(folder / name, name) for name in ("standard", "euler", "diff")]
    samples = [Sample(run.name, "def read_lines(path):\n", "    " + "x" * 300 + HOSTILE) for run in runs]
    write_page(runs, folder / "report.html", "Three variants", ["An introduction. " * 9, HOSTILE], samples)
    return folder / "report.html"


def test_the_page_draws_its_curves_without_console_messages_or_requests(browser: Browser, page: Path) -> None:
    browser.open(page)
    lengths = browser.evaluate("[...document.querySelectorAll('.series .line')].map(line => line.getTotalLength())")
    assert len(lengths) == 6
    assert all(length > 100 for length in lengths)
    assert browser.evaluate("document.querySelectorAll('table.results tbody tr').length") == 3
    assert browser.console() == []
    assert browser.requests() == [page.as_uri()]


def test_the_content_security_policy_blocks_injected_scripts_and_requests(browser: Browser, page: Path) -> None:
    injected = "<script>document.title = 'taken'</script><img src='https://example.org/x.png'></main>"
    tampered = page.with_name("tampered.html")
    tampered.write_text(page.read_text("utf-8").replace("</main>", injected), "utf-8")
    browser.open(tampered)
    assert browser.evaluate("document.title") == "Three variants"
    refused = [entry["entry"]["text"] for entry in browser.events_of("Log.entryAdded")]
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
def test_the_page_fits_the_window_width(width: int, browser: Browser, page: Path) -> None:
    browser.open(page, width)
    browser.point_at(".plot svg", across=0.5)
    browser.assert_fits(width, "h1, h2, p, pre, svg, .wide, .readout, dd")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast(scheme: str, browser: Browser, page: Path) -> None:
    browser.open(page, scheme=scheme)
    browser.assert_legible(scheme, "p, .note, td, th, pre, .prompt, figcaption, .chart text")


def test_a_chart_is_a_self_contained_file(browser: Browser, tmp_path: Path) -> None:
    sweep = [Series("standard", [(1e-4, 4.1), (1e-3, 3.7), (1e-2, 4.2)]), Series("euler", [(1e-4, 4.2), (1e-3, 3.6)])]
    (tmp_path / "sweep.svg").write_text(line_chart(sweep, "learning rate", "loss", log_x=True, title="Sweep"), "utf-8")
    browser.open(tmp_path / "sweep.svg")
    assert browser.evaluate("document.documentElement.tagName") == "svg"
    assert browser.evaluate("getComputedStyle(document.querySelector('.line')).stroke") == "rgb(0, 114, 178)"
    assert browser.events_of("Log.entryAdded") == []
