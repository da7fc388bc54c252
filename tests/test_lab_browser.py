"""The laboratory's report in a real browser with the network off."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from browser import Browser, running_browser
from coupledqk.report.lab_page import write_report
from test_lab_report import make_outcome, with_status
from test_report import HOSTILE


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    yield from running_browser(tmp_path_factory.mktemp("profile"))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    failed = with_status(make_outcome(), "euler", 2, "failed", "the loss is not finite" + "x" * 200)
    hostile = make_outcome(experiment="controls", title=HOSTILE, caption=HOSTILE, answer=(HOSTILE,), command=HOSTILE)
    file = tmp_path_factory.mktemp("report") / "report.html"
    write_report([failed, hostile], file)
    return file


def test_tables_are_filled_and_curves_drawn_without_errors_or_network_requests(browser: Browser, page: Path) -> None:
    browser.open(page)
    cells = browser.evaluate("[...document.querySelectorAll('table.lab td.r')].map(cell => cell.textContent.trim())")
    assert len(cells) > 40
    assert all(cells)
    assert browser.evaluate("document.querySelectorAll('.claims tbody tr:not(.experiment)').length") == 4
    lengths = browser.evaluate("[...document.querySelectorAll('.series .line')].map(line => line.getTotalLength())")
    assert len(lengths) == 2 * (3 + 2 + 3)
    assert all(length > 100 for length in lengths)
    heights = browser.evaluate("[...document.querySelectorAll('.series .band')].map(band => band.getBBox().height)")
    assert len(heights) == len(lengths)
    assert all(height > 0 for height in heights)
    assert browser.console() == []
    assert browser.requests() == [page.as_uri()]


def test_the_table_of_claims_links_to_each_experiment(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.click(".claims tbody:last-child .experiment a")
    browser.wait_for("Math.abs(document.querySelector('#experiment-2').getBoundingClientRect().top) < 5")
    assert browser.console() == []


@pytest.mark.parametrize("width", [320, 390, 700, 1400])
def test_the_page_fits_the_width_of_the_screen(width: int, browser: Browser, page: Path) -> None:
    browser.open(page, width)
    browser.evaluate("document.querySelectorAll('details').forEach(part => part.open = true)")
    browser.assert_fits(width, "h1, h2, h3, p, li, svg, .wide, dd")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast(scheme: str, browser: Browser, page: Path) -> None:
    browser.open(page, scheme=scheme)
    browser.assert_legible(scheme, "p, a, td, th, li, .why, .verdict, dt, dd, summary")
