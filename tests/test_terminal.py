"""Output fits the terminal, and the terminal is restored afterwards."""

import io
import os
import signal
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from coupledqk import terminal
from coupledqk.errors import DivergedError
from coupledqk.measure import PERPLEXITY
from coupledqk.runs.progress import training_progress
from coupledqk.runs.training import train_run
from coupledqk.signals import stop_on_signals
from coupledqk.terminal import Bars, table, tokenizing, tracked, wrapped
from coupledqk.training.events import Event, Step
from small_runs import tiny

HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"

HEAD = ["run", "attention", "best perplexity", "what was found", "bits per byte", "parameters"]
ROWS = [
    ["runs/stdlib-euler-s0-0123456789ab", "euler", "12.34", "supported, in all of the five seeds", "1.2345", "60,408,896"],
    ["runs/stdlib-standard-s1-ba9876543210", "standard", "12.90", "inconclusive", "1.2501", "60,343,296"],
]  # fmt: skip


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """All that a terminal of 80 columns receives on standard error."""
    received = io.StringIO()
    monkeypatch.setattr(terminal, "_can_draw", lambda: True)
    monkeypatch.setattr("rich.console.Console", lambda stderr: Console(file=received, force_terminal=True, width=80))
    return received


@pytest.mark.parametrize("width", [80, 120])
def test_a_table_fits_and_breaks_no_word(width: int) -> None:
    text = table(HEAD, ROWS, width)
    assert max(map(len, text.splitlines())) <= width
    words = {word.strip(".,") for cells in (HEAD, *ROWS) for cell in cells for word in cell.split()}
    printed = {word.strip(".,") for word in text.replace("─", "").split()}
    assert printed <= words | {"Not", "shown", "at", "this", "width:"}
    for name, *cells in zip(HEAD, *ROWS, strict=True):
        shown = all(word in text for cell in cells for word in cell.split())
        assert shown != (f"Not shown at this width: {name}" in text or f", {name}" in text)


def test_a_narrow_table_omits_its_last_columns_and_says_which() -> None:
    assert table(HEAD, ROWS, 80).endswith("Not shown at this width: what was found, bits per byte, parameters.")
    assert "Not shown" not in table(HEAD, ROWS, 200)


def test_a_table_outside_a_terminal_is_not_wrapped() -> None:
    first, *_ = table(HEAD, ROWS).splitlines()
    assert first.split("  ") != HEAD
    assert len(table(HEAD, ROWS).splitlines()) == 2 + len(ROWS)


@pytest.mark.parametrize("width", [80, 120])
def test_a_paragraph_is_broken_at_spaces(width: int) -> None:
    text = "    indented by four, and on and on, with-hyphens-that-stay " * 6 + "\nand a second line"
    lines = wrapped(text, width).splitlines()
    assert max(map(len, lines)) <= width
    assert " ".join(lines).split() == text.split()
    assert lines[1].startswith("    ")
    assert lines[-1] == "and a second line"


@pytest.mark.parametrize("width", [80, 120])
def test_a_progress_bar_fits_and_omits_the_least_important_parts(
    screen, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setattr("rich.console.Console", lambda stderr: Console(file=screen, force_terminal=True, width=width))
    with Bars() as bars:
        bar = bars.add("openwebtext-hamiltonian_gqa-s12-0123456789ab", 30_000)
        bars.update(bar, 12_345, "loss 3.123", "valid perplexity 25.12", "12.5 h left", "12,345 tok/s")
        shown = bars.rich.console.render_lines(bars.rich.get_renderable(), pad=False)
    assert len(shown) == 1
    line = "".join(segment.text for segment in shown[0])
    assert len(line.rstrip()) <= width
    assert "12345/30000 loss 3.123" in line
    assert ("valid perplexity 25.12" in line) == (width == 120)
    assert "tok/s" not in line


ENDINGS = {
    "divergence": DivergedError("the loss became nan"),
    "out of memory": RuntimeError("CUDA out of memory"),
    "a second Ctrl-C": KeyboardInterrupt(),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_cursor_is_visible_again_however_training_ends(ending: str, screen, text: Path, tmp_path: Path) -> None:
    def fail(event: Event) -> None:
        if isinstance(event, Step) and event.step == 3:
            assert screen.getvalue().rfind(HIDE) > screen.getvalue().rfind(SHOW)
            raise ENDINGS[ending]

    with pytest.raises(type(ENDINGS[ending])):
        train_run(tiny(text), tmp_path / "run", lambda run: [training_progress("mine", tiny(text)), nullcontext(fail)])
    assert screen.getvalue().rfind(SHOW) > screen.getvalue().rfind(HIDE)


def test_the_progress_bar_shows_when_the_run_is_validating(
    screen, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[tuple[Any, ...]] = []
    monkeypatch.setattr(Bars, "update", lambda self, bar, done, *parts: said.append((done, *parts)))
    train_run(tiny(text), tmp_path / "run", lambda run: [training_progress("mine", tiny(text))])
    assert [done for done, *parts in said if "validating" in parts] == [5, 10, 15, 20]


def test_without_a_terminal_progress_is_plain_lines(
    capsys: pytest.CaptureFixture[str], text: Path, tmp_path: Path
) -> None:
    run = train_run(tiny(text), tmp_path / "run", lambda run: [training_progress("mine", tiny(text))])
    printed = capsys.readouterr()
    assert not printed.out
    assert "\x1b" not in printed.err
    assert f"mine  20/20  valid perplexity {PERPLEXITY.show(run.result['final']['perplexity'])}" in printed.err


def test_progress_counts_items_and_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(tracked("abc", "letters", 3)) == ["a", "b", "c"]
    with tokenizing() as on_bytes:
        on_bytes(2_500_000)
    assert capsys.readouterr().err.splitlines() == ["letters  1/3", "tokenizing  2.5 MB"]


def test_the_first_signal_requests_a_stop_and_the_second_interrupts() -> None:
    before = signal.getsignal(signal.SIGINT)
    with stop_on_signals() as stop:
        assert not stop()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_stop_on_signals_works_in_a_thread() -> None:
    answers: list[bool] = []

    def work() -> None:
        with stop_on_signals() as stop:
            answers.append(stop())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert answers == [False]
