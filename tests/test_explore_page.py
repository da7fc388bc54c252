"""The explorer's page in a real browser: drawn from the bundle alone, with the network off."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browser import Browser, running_browser
from coupledqk.explore.bundle import Reader, make_bundle
from coupledqk.explore.page import render
from coupledqk.explore.paths import plane_paths
from coupledqk.explore.server import Server
from test_explore import HOSTILE, TEXT, layers, patterns, reader

SHOWN = "!document.querySelector('#explorer').hidden"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    yield from running_browser(tmp_path_factory.mktemp("profile"))


@pytest.fixture
def page(browser: Browser, tmp_path: Path):
    """Opens the page of some readers on a text."""

    def open_page(*readers: Reader, text: str = TEXT, **window: Any) -> Browser:
        (tmp_path / "page.html").write_text(render(make_bundle(readers, text)), "utf-8")
        browser.open(tmp_path / "page.html", **window)
        browser.wait_for(SHOWN)
        return browser

    yield open_page
    assert browser.complaints() == []
    urls = [request["request"]["url"] for request in browser.heard("Network.requestWillBeSent")]
    assert urls == [(tmp_path / "page.html").as_uri()]


def texts(browser: Browser, selector: str) -> list[str]:
    return browser.evaluate(f"[...document.querySelectorAll('{selector}')].map(e => e.innerText)")


def cell(n: int, query: int, key: int, browser: Browser) -> tuple[float, float]:
    """Where on the canvas a weight is, as fractions of its width and height; tokens stand to the left and above."""
    width, margin = browser.evaluate("[shown[0].heat.width, shown[0].heat.margin]")
    return tuple((margin + (i + 0.5) * (width - margin) / n) / width for i in (key, query))


def picture(browser: Browser, selector: str = "#maps canvas") -> str:
    return browser.evaluate(f"document.querySelector('{selector}').toDataURL()")


def test_picking_another_head_or_layer_draws_another_map(page) -> None:
    browser = page(reader("euler"))
    pictures = {picture(browser)}
    browser.click("#heads button:nth-of-type(3)")
    pictures.add(picture(browser))
    assert "layer 0, head 2" in browser.evaluate("document.querySelector('#maps canvas').ariaLabel")
    browser.press("ArrowDown")
    pictures.add(picture(browser))
    browser.press("ArrowRight")
    pictures.add(picture(browser))
    assert texts(browser, "#layers [aria-pressed=true], #heads [aria-pressed=true]") == ["1", "3"]
    assert len(pictures) == 4


def test_pointing_at_a_weight_shows_it_and_its_row(page) -> None:
    subject = reader("euler")
    browser = page(subject)
    for move in "ArrowDown", "ArrowRight", "ArrowRight":
        browser.press(move)
    query, key = 12, 4
    browser.point_at("#maps canvas", *cell(len(TEXT), query, key, browser))
    row = patterns(subject)[1, 2, query]
    strongest = int(row.argmax())
    pointed, first, *_ = texts(browser, ".bar")
    for line, place in ((pointed, key), (first, strongest)):
        assert line.split("\n") == [TEXT[place].replace(" ", "·"), str(place), f"{100 * row[place]:.1f}%"]
    assert browser.evaluate("[...document.querySelectorAll('#tokens .query')].map(e => e.dataset.token)") == [
        str(query)
    ]
    browser.point_at("h1")
    assert texts(browser, ".pointed") == [], "what was pointed at is let go"
    browser.click("#maps canvas", *cell(len(TEXT), query, key, browser))
    browser.point_at("h1")
    assert browser.evaluate("document.querySelector('#tokens .query').dataset.token") == str(query), "a click keeps it"


def test_the_scrubber_moves_q_and_k_along_their_path(page) -> None:
    subject = reader("hamiltonian_diff")
    browser = page(subject)
    for move in "ArrowDown", "ArrowRight", "ArrowRight":
        browser.press(move)
    points, _ = plane_paths(layers(subject)[1])
    token = browser.evaluate("Number(document.querySelector('#tokens .query').dataset.token)")
    ways = {browser.evaluate("document.querySelector('.arrow.k').getAttribute('d')")}
    for step in (2, 1, 0):
        browser.press("[")
        ways.add(browser.evaluate("document.querySelector('.arrow.k').getAttribute('d')"))
        assert texts(browser, "#step-name") == [f"{step} of 3"]
        lengths = [points[head, token, step, axes].norm() for head in (2, 6) for axes in (slice(2), slice(2, 4))]
        drawn = texts(browser, "#paths td:nth-child(2)")  # q and k of the head's first map, then of its second
        assert [line.split()[-1] for line in drawn] == [f"{length:.2f}" for length in lengths]
    assert len(ways) == 4
    browser.press("[")
    browser.press("]")
    assert texts(browser, "#step-name") == ["1 of 3"], "the scrubber stops at the start"


def test_two_runs_share_a_scale_and_have_a_difference(page) -> None:
    first, second = reader("standard"), reader("diff")
    browser = page(first, second)
    assert texts(browser, "#maps .run > figcaption") == ["standard", "diff"]
    assert "No path to draw" in texts(browser, "#paths .note")[0]
    browser.press("d")
    browser.point_at("#maps canvas", *cell(len(TEXT), 12, 4, browser))
    difference = patterns(second)[0, 0, 12, 4] - patterns(first)[0, 0, 12, 4]
    assert texts(browser, ".pointed b") == [f"{100 * difference:+.1f} pp".replace("-", "−")]
    browser.press("a")
    assert browser.evaluate("document.querySelectorAll('#maps canvas').length") == 4
    browser.click("#maps figure figure:nth-child(3) canvas")
    assert texts(browser, "#heads [aria-pressed=true]") == ["2"]


def test_runs_of_different_shape_show_what_they_have(page) -> None:
    browser = page(reader(name="deep", n_layers=3), reader(name="shallow", n_layers=1))
    browser.press("ArrowUp")
    assert browser.evaluate("document.querySelectorAll('#maps canvas').length") == 1
    assert texts(browser, "#maps p.note") == ["shallow has no layer 2."]
    browser.press("d")
    assert browser.evaluate("document.querySelectorAll('#maps canvas').length") == 0


@pytest.mark.parametrize("width", [320, 360, 700, 1400])
def test_nothing_sticks_out_sideways(width: int, page) -> None:
    browser = page(reader("euler"), reader("euler_diff"))
    for key in "", "a", "d":
        if key:
            browser.press(key)
        browser.resize(width)
        browser.wait_for(f"innerWidth === {width} && shown.every(({{heat}}) => heat.canvas.clientWidth === heat.width)")
        assert browser.evaluate("document.documentElement.scrollWidth") == width
    assert browser.evaluate("document.querySelector('#maps canvas').clientWidth") > 50


def test_hostile_text_stays_text(page) -> None:
    browser = page(reader(n_positions=256), text=HOSTILE)
    shown = browser.evaluate("[...document.querySelectorAll('#tokens bdi')].map(e => e.textContent)")
    assert "".join(shown[:9]) == "</script>"
    assert "\\u{0}" in shown
    assert browser.evaluate("document.title") == "Attention of standard"
    assert browser.evaluate("document.images.length + document.querySelectorAll('script').length") == 2
    for key in ".", ",", "a":
        browser.press(key)
    assert all(token.isprintable() for token in texts(browser, ".name"))


def test_the_chosen_token_is_kept_in_sight(page) -> None:
    browser = page(reader(n_positions=256), text="line\n" * 50, width=360)
    inside = """(() => {
        const [box, token] = ["#tokens", "#tokens .query"].map(name => document.querySelector(name).getBoundingClientRect());
        return box.top <= token.top && token.bottom <= box.bottom;
    })()"""
    assert browser.evaluate(inside)
    browser.point_at("#maps canvas", 0.01, 0.05)
    assert browser.evaluate(inside)


def test_a_single_token_is_a_map_too(page) -> None:
    browser = page(reader("euler", n_positions=1), text="x")
    assert texts(browser, ".bar") == ["x\n0\n100.0%"]


def test_a_typed_sentence_replaces_the_maps_and_a_bad_one_leaves_them(browser: Browser) -> None:
    with Server([reader("euler", n_positions=64)], TEXT, port=0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        check_live_page(server, browser)
        server.shutdown()


def check_live_page(server: Server, browser: Browser) -> None:
    browser.open(server.url)
    browser.wait_for(SHOWN)
    browser.press("ArrowDown")
    browser.evaluate("document.querySelector('#text').value = 'a dog <b>'")
    browser.click("#ask button")
    browser.wait_for("document.querySelectorAll('#tokens bdi').length === 9")
    assert texts(browser, "#layers [aria-pressed=true]") == ["1"], "the chosen layer stays"
    assert browser.complaints() == []
    browser.evaluate("document.querySelector('#text').value = 'x'.repeat(70)")
    browser.click("#ask button")
    browser.wait_for("!document.querySelector('#error').hidden")
    assert "70 tokens and the model has 64 positions" in texts(browser, "#error")[0]
    assert browser.evaluate("document.querySelectorAll('#tokens bdi').length") == 9
