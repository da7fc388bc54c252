"""The explorer's page in a real browser: drawn from the bundle alone, with the network off."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from browser import Browser, running_browser
from coupledqk.analysis.motion import attention_moved
from coupledqk.explore.bundle import Reader, make_bundle, make_effects
from coupledqk.explore.motion import motion_numbers, plane_paths, states_of
from coupledqk.explore.page import render
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
        (tmp_path / "page.html").write_text(render(make_bundle(readers, text), make_effects(readers, text)), "utf-8")
        browser.open(tmp_path / "page.html", **window)
        browser.wait_for(SHOWN)
        return browser

    yield open_page
    assert browser.console() == []
    assert browser.requests() == [(tmp_path / "page.html").as_uri()]


def texts(browser: Browser, selector: str) -> list[str]:
    return browser.evaluate(f"[...document.querySelectorAll('{selector}')].map(e => e.innerText)")


def cell(n: int, query: int, key: int, browser: Browser) -> tuple[float, float]:
    """Where on the canvas a weight is, as fractions of its width and height; the tokens are on the left and at the top."""
    width, margin = browser.evaluate("[shown[0].heat.width, shown[0].heat.margin]")
    return tuple((margin + (i + 0.5) * (width - margin) / n) / width for i in (key, query))


def picture(browser: Browser, selector: str = "#maps canvas") -> str:
    return browser.evaluate(f"document.querySelector('{selector}').toDataURL()")


def go_to(browser: Browser, layer: int, head: int, view: str = "runs") -> None:
    browser.evaluate(f"choose({{layer: {layer}, head: {head}, view: '{view}', all: false}})")


def most_changed(subject: Reader) -> tuple[int, int]:
    changed = torch.stack([attention_moved(layer)[0] for layer in layers(subject)])
    layer, head = divmod(int(changed.argmax()), changed.shape[1])
    return layer, head


def chosen(browser: Browser) -> list[str]:
    return texts(browser, "#layers [aria-pressed=true], #heads [aria-pressed=true]")


def test_picking_another_head_or_layer_draws_another_map(page) -> None:
    browser = page(reader("euler"))
    go_to(browser, 0, 0)
    pictures = {picture(browser)}
    browser.click("#heads button:nth-of-type(3)")
    pictures.add(picture(browser))
    assert "layer 0, head 2" in browser.evaluate("document.querySelector('#maps canvas').ariaLabel")
    browser.press("ArrowDown")
    pictures.add(picture(browser))
    browser.press("ArrowRight")
    pictures.add(picture(browser))
    assert chosen(browser) == ["1", "3"]
    assert len(pictures) == 4


def test_pointing_at_a_weight_shows_it_and_its_row(page) -> None:
    subject = reader("standard")
    browser = page(subject)
    go_to(browser, 1, 2)
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


def test_a_coupled_run_opens_before_and_after_coupling_at_the_head_that_it_changes_most(page) -> None:
    subject = reader("hamiltonian")
    browser = page(subject)
    layer, head = most_changed(subject)
    assert chosen(browser) == [str(layer), str(head)]
    assert texts(browser, "#maps figcaption") == ["before coupling", "after coupling"]
    share = float(attention_moved(layers(subject)[layer])[0, head])
    assert f"it is {100 * share:.1f}%: number 1 of 8" in texts(browser, "#verdict")[0]
    maps = layers(subject)[layer].patterns()[[0, -1], 0, head]
    before, after = (-(maps * maps.clamp(min=1e-30).log()).sum(-1)).exp().mean(-1).tolist()
    numbers = (f"{after:.1f} tokens on average instead of {before:.1f}", f"about as many as before ({before:.1f})")
    for said in (texts(browser, "#verdict")[0], texts(browser, "#stop")[0]):
        assert any(words in said for words in numbers)
    assert texts(browser, "#changed button[aria-pressed=true]") == [f"layer {layer}, head {head}\n{100 * share:.1f}%"]
    browser.evaluate("document.querySelector('#changed details').open = true")
    shares = [float(share.strip("%")) for share in texts(browser, "#changed button b")]
    assert len(shares) == 8
    assert shares == sorted(shares, reverse=True)


def test_the_maps_follow_the_slider_step_by_step(page) -> None:
    subject = reader("hamiltonian")
    browser = page(subject)
    go_to(browser, 1, 2, "both")
    maps = layers(subject)[1].patterns()[:, 0, 2]
    token = browser.evaluate("Number(document.querySelector('#tokens .query').dataset.token)")
    pictures = {picture(browser, "#maps .run:last-child canvas")}
    for step, words in ((2, "after step 2 of 3"), (1, "after step 1 of 3"), (0, "before coupling")):
        browser.press("[")
        assert texts(browser, "#step-name") == [f"step {step} of 3" if step else "before"]
        assert texts(browser, "#maps figcaption") == ["before coupling", words]
        first = texts(browser, "#maps .run:last-child .bar b")[0]
        assert first == f"{100 * maps[step, token].max():.1f}%"
        pictures.add(picture(browser, "#maps .run:last-child canvas"))
    assert len(pictures) == 4
    browser.click("#play")
    browser.wait_for("state.step === 3")
    browser.press("v")
    change = (maps[3] - maps[0]).abs().sum(-1).mean() / 2
    assert texts(browser, "#maps .numbers") == [f"{100 * change:.1f}% of the attention differs"]


def test_the_text_states_how_far_query_and_key_of_the_token_move(page) -> None:
    subject = reader("hamiltonian_diff")
    browser = page(subject)
    go_to(browser, 1, 2)
    numbers = motion_numbers(*states_of(layers(subject)[1]))
    token = browser.evaluate("Number(document.querySelector('#tokens .query').dataset.token)")
    arrows = {browser.evaluate("document.querySelector('.arrow.k').getAttribute('d')")}
    for step in (2, 1):
        browser.press("[")
        arrows.add(browser.evaluate("document.querySelector('.arrow.k').getAttribute('d')"))
        for words, sub_head in zip(texts(browser, "#paths .words p:nth-of-type(2)"), (2, 6), strict=True):
            _, _, q_moved, k_moved, *_ = (float(x) for x in numbers[sub_head, token, step])
            assert words.startswith(f"After {step} of 3 steps of size ")
            assert f"query has moved by {100 * q_moved:.1f}% of its length" in words
            assert f"key has moved by {100 * k_moved:.1f}% of its length" in words
    assert len(arrows) == 3
    browser.press("[")
    browser.press("[")
    assert texts(browser, "#step-name") == ["before"], "the slider stops at the start"
    assert all("query has not moved yet" in words for words in texts(browser, "#paths .words p:nth-of-type(2)"))
    _, held = plane_paths(*states_of(layers(subject)[1]))
    assert f"{100 * held[2, token]:.1f}% of their squared length" in texts(browser, "#paths .words .note")[0]


def test_a_motion_beyond_the_stored_range_is_shown_as_more_than_its_limit(page) -> None:
    subject = reader("drift", n_layers=1)
    subject.model.blocks[0].attn.dynamics.tau.data.fill_(6.0)
    browser = page(subject)
    assert float(motion_numbers(*states_of(layers(subject)[0]))[..., -1, 2].min()) > 32.767
    assert all(
        "moved by more than 3276.7% of its length" in words
        for words in texts(browser, "#paths .words p:nth-of-type(1)")
    )


def test_the_tour_has_four_stops(page) -> None:
    subject = reader("hamiltonian")
    browser = page(subject)
    [run] = make_bundle([subject], TEXT)["runs"]
    stops = run["tour"]
    assert [stop["kind"] for stop in stops] == ["previous", "induction", "sink", "changed"]
    for place, stop in enumerate(stops, start=1):
        browser.press("t")
        assert texts(browser, "#stops [aria-pressed=true]")[0].startswith(f"{place} ")
        assert chosen(browser) == [str(stop["layer"]), str(stop["head"])]
        words = "\n".join(texts(browser, "#stop p"))
        assert f"ayer {stop['layer']}, head {stop['head']}" in words
        assert f"{100 * stop['share']:.1f}% of its attention" in words
        assert browser.evaluate("document.querySelector('#tokens .query').dataset.token") == str(stop["query"])
    assert "Drag the slider" in words


def test_the_reason_for_a_missing_tour_stop_is_shown(page) -> None:
    browser = page(reader("standard"), text="abc")
    browser.click("#stops button:nth-of-type(2)")
    assert "No token of this text occurs twice" in texts(browser, "#stop")[0]
    browser.click("#stops button:nth-of-type(4)")
    assert "have no coupling" in texts(browser, "#stop")[0]
    assert browser.evaluate("[...document.querySelectorAll('.coupled')].every(part => !part.checkVisibility())")


def test_switching_off_a_head_or_the_dynamics_shows_the_loss(page) -> None:
    subject = reader("hamiltonian")
    browser = page(subject)
    go_to(browser, 1, 3)
    [effects] = make_effects([subject], TEXT)
    losses = [
        effects["loss"],
        effects["without_head"][1][3],
        effects["without_motion"][1][3],
        effects["without_dynamics"],
    ]
    assert texts(browser, "#effects td:nth-child(2)") == [f"{loss:.3f}" for loss in losses]
    changes = texts(browser, "#effects td:nth-child(3)")
    assert changes[1:] == [f"{loss - losses[0]:+.3f}".replace("-", "−") for loss in losses[1:]]
    assert texts(browser, "#effects th[scope=row]")[1] == "without layer 1, head 3"


def test_two_runs_share_a_scale_and_have_a_difference(page) -> None:
    first, second = reader("standard"), reader("diff")
    browser = page(first, second)
    assert texts(browser, "#maps .run > figcaption") == ["standard", "diff"]
    go_to(browser, 0, 0, "difference")
    browser.point_at("#maps canvas", *cell(len(TEXT), 12, 4, browser))
    difference = patterns(second)[0, 0, 12, 4] - patterns(first)[0, 0, 12, 4]
    assert texts(browser, ".pointed b") == [f"{100 * difference:+.1f} pp".replace("-", "−")]
    browser.press("a")
    assert browser.evaluate("document.querySelectorAll('#maps canvas').length") == 4
    browser.click("#maps figure figure:nth-child(3) canvas")
    assert texts(browser, "#heads [aria-pressed=true]") == ["2"]


def test_a_standard_and_a_coupled_run_are_shown_side_by_side(page) -> None:
    browser = page(reader("standard"), reader("euler", name="mine"))
    assert texts(browser, "#views button") == ["before and after", "change", "side by side", "difference"]
    assert texts(browser, "#maps .run > figcaption") == ["mine, before coupling", "mine, after coupling"]
    browser.press("[")
    assert texts(browser, "#maps .run > figcaption") == ["mine, before coupling", "mine, after step 2 of 3"]
    browser.evaluate("choose({view: 'runs'})")
    assert texts(browser, "#maps .run > figcaption") == ["standard", "mine euler, after step 2 of 3"]
    assert len(texts(browser, "#effects table")) == 2


def test_a_layer_that_only_one_run_has_is_shown_for_that_run(page) -> None:
    browser = page(reader(name="deep", n_layers=3), reader(name="shallow", n_layers=1))
    browser.press("ArrowUp")
    assert browser.evaluate("document.querySelectorAll('#maps canvas').length") == 1
    assert texts(browser, "#maps p.note") == ["shallow has no layer 2."]
    browser.press("v")
    assert browser.evaluate("document.querySelectorAll('#maps canvas').length") == 0


@pytest.mark.parametrize("width", [320, 360, 700, 1400])
def test_the_page_fits_the_window_width(width: int, page) -> None:
    browser = page(reader("euler"), reader("euler_diff"))
    for key in "", "a", "v", "v", "t":
        if key:
            browser.press(key)
        browser.resize(width)
        browser.wait_for(f"innerWidth === {width} && shown.every(({{heat}}) => heat.canvas.clientWidth === heat.width)")
        browser.assert_fits(width, "h1, h2, p, canvas, svg, button, table, .tokens, .pickers")
    assert browser.evaluate("document.querySelector('#maps canvas').clientWidth") > 50


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast(scheme: str, page) -> None:
    browser = page(reader("hamiltonian"), scheme=scheme)
    browser.press("t")
    browser.assert_legible(scheme, "p, .note, td, th, figcaption, summary, output, label, .tokens bdi")


def test_hostile_text_is_shown_as_plain_text(page) -> None:
    browser = page(reader(n_positions=256), text=HOSTILE)
    shown = browser.evaluate("[...document.querySelectorAll('#tokens bdi')].map(e => e.textContent)")
    assert "".join(shown[:9]) == "</script>"
    assert "\\u{0}" in shown
    assert browser.evaluate("document.title") == "Attention of standard"
    assert browser.evaluate("document.images.length + document.querySelectorAll('script').length") == 3
    for key in ".", ",", "a":
        browser.press(key)
    assert all(token.isprintable() for token in texts(browser, ".name"))


def test_the_chosen_token_is_kept_in_view(page) -> None:
    browser = page(reader(n_positions=256), text="line\n" * 50, width=360)
    inside = """(() => {
        const [box, token] = ["#tokens", "#tokens .query"].map(name => document.querySelector(name).getBoundingClientRect());
        return box.top <= token.top && token.bottom <= box.bottom;
    })()"""
    assert browser.evaluate(inside)
    browser.point_at("#maps canvas", 0.01, 0.05)
    assert browser.evaluate(inside)


def test_a_text_of_a_single_token_is_shown(page) -> None:
    browser = page(reader("standard", n_positions=1), text="x")
    assert texts(browser, ".bar") == ["x\n0\n100.0%"]
    assert "no next token to predict" in texts(browser, "#effects")[0]


def test_maps_are_updated_while_typing_and_kept_if_the_text_is_invalid(browser: Browser) -> None:
    with Server([reader("euler", n_positions=64)], TEXT, port=0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        check_live_page(server, browser)
        server.shutdown()


def check_live_page(server: Server, browser: Browser) -> None:
    browser.open(server.url)
    browser.wait_for(SHOWN)
    browser.wait_for("document.querySelectorAll('#effects td').length > 0")
    browser.evaluate("choose({layer: 1, head: 2})")
    write(browser, "a dog <b>")
    browser.wait_for("document.querySelectorAll('#tokens bdi').length === 9")
    assert chosen(browser) == ["1", "2"], "the chosen head stays"
    [effects] = make_effects([reader("euler", n_positions=64)], "a dog <b>")
    browser.wait_for(f"document.querySelector('#effects td')?.textContent === '{effects['loss']:.3f}'")
    assert browser.console() == []
    write(browser, "x" * 70)
    browser.wait_for("!document.querySelector('#error').hidden")
    assert "70 tokens and the model has 64 positions" in texts(browser, "#error")[0]
    assert browser.evaluate("document.querySelectorAll('#tokens bdi').length") == 9, "the last maps stay"


def write(browser: Browser, text: str) -> None:
    """Types a text into the text field, key by key."""
    browser.evaluate("document.querySelector('#text').value = ''; document.querySelector('#text').focus()")
    for character in text:
        browser.call("Input.insertText", text=character)
