"""Ctrl-C, SIGTERM and SIGHUP in every phase of real commands, on a terminal of their own.

A signal is sent when the command has printed or written something specific to the phase under test, and a second one when the
first has been acknowledged. No test depends on timing.
"""

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from coupledqk.run_folder import RunFolder
from coupledqk.training.checkpoints import Checkpoints, damage
from small_runs import TINY, run_to, tiny, trained_bits

PATIENCE = 240
"""Seconds until a command counts as hanging; the machine may be busy."""
ENTRY = "from coupledqk.__main__ import main; main()"
BLOCK = "import sys, time; print('{mark}', file=sys.stderr, flush=True); time.sleep(10_000)"
"""Code that replaces a long phase: it prints a mark when it begins, and never ends by itself."""


class Command:
    """A command on its own terminal, and its output."""

    def __init__(self, words: list[str], patch: str = "") -> None:
        self.terminal, inner = pty.openpty()
        code = f"{patch}\nimport sys\nsys.argv[1:] = {words!r}\n{ENTRY}"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=inner,
            stdout=inner,
            stderr=inner,
            start_new_session=True,
            # ignored signals are not inherited from nohup or a background shell
            preexec_fn=lambda: [signal.signal(n, signal.SIG_DFL) for n in (signal.SIGINT, signal.SIGHUP)],
        )
        os.close(inner)
        self.printed = ""

    def wait_for(self, mark: str) -> None:
        limit = time.monotonic() + PATIENCE
        while mark not in self.printed:
            assert time.monotonic() < limit, self.printed
            assert self._read(), f"it ended without {mark!r}: {self.printed}"

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self) -> int:
        """Waits for the command to end, and returns its exit code."""
        while self._read():
            pass
        code = self.process.wait(PATIENCE)
        os.close(self.terminal)
        return code

    def _read(self) -> bool:
        try:
            new = os.read(self.terminal, 4096).decode(errors="replace")
        except OSError:  # the other side was closed
            return False
        self.printed += new.replace("\r\n", "\n")
        return bool(new)


def assert_tidy(command: Command, advice: str) -> None:
    assert command.end() == 130, command.printed
    assert advice in command.printed
    assert "Traceback" not in command.printed
    assert command.printed.count("\033[?25l") <= command.printed.count("\033[?25h")  # the cursor is visible again


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("text") / "text.txt"
    file.write_text("".join(f"{n} squared is {n * n}.\n" for n in range(36)))
    return file


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COUPLEDQK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def training(text: Path, out: Path, **settings: object) -> list[str]:
    chosen = {**TINY, "corpus": text, "threads": 1, **settings}
    return ["train", "--out", str(out), *(f"--{name}={value}" for name, value in chosen.items())]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_import_stops_the_command(number: int) -> None:
    stuck = f"import importlib\ndef stuck(*names): {BLOCK.format(mark='IMPORTING')}\nimportlib.import_module = stuck"
    command = Command(["runs"], stuck)
    command.wait_for("IMPORTING")
    command.send(number)
    assert_tidy(command, "stopped")


def test_a_signal_during_tokenization_in_c_code_stops_the_command(text: Path, tmp_path: Path) -> None:
    """The process ends although its main thread is in C code that never checks for signals."""
    stuck = """
import ctypes, sys
import coupledqk.data.tokenizers as tokenizers
def train_bpe(name, texts):
    print("TOKENIZING", file=sys.stderr, flush=True)
    while True:
        try:
            ctypes.CDLL(None).usleep(999_999)
        except KeyboardInterrupt:  # as if C code had gone on
            pass
import coupledqk.data.building as building
building.train_bpe = train_bpe
"""
    words = training(text, tmp_path / "run", tokenizer="bpe:300", vocab_size=300)
    command = Command(words, stuck)
    command.wait_for("TOKENIZING")
    command.send(signal.SIGINT)
    assert_tidy(command, f"coupledqk train --resume {tmp_path / 'run'}")


PHASES = {
    "training": """
def loss_sum(self, model, micro, real=Task.loss_sum):
    if seen(5, "micro-batch"): wait()
    return real(self, model, micro)
Task.loss_sum = loss_sum""",
    "evaluating": """
def valid_batches(*given, real=lm.valid_batches, **named):
    for batch in real(*given, **named):
        if seen(1, "batch of a validation"): wait()
        yield batch
lm.valid_batches = valid_batches""",
    "saving": """
def save(self, *given, real=Checkpoints.save):
    if seen(1, "save"): wait()
    return real(self, *given)
Checkpoints.save = save""",
}
PATCH = """
import signal, sys, time
from collections import Counter
from coupledqk.tasks import lm
from coupledqk.training.checkpoints import Checkpoints
Task, calls = lm.LanguageModelling, Counter()
def seen(n, name):
    calls[name] += 1
    return calls[name] == n
def wait():
    # until a signal has come: its handler says so
    import coupledqk.signals as signals
    print("NOW", file=sys.stderr, flush=True)
    while not signals._state.asked: time.sleep(0.01)
"""


@pytest.fixture(scope="module")
def uninterrupted(text: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes | str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COUPLEDQK_CACHE", str(tmp_path_factory.mktemp("cache")))
        return trained_bits(run_to(tiny(text, "standard", threads=1), tmp_path_factory.mktemp("whole") / "run"))


@pytest.mark.parametrize(
    ("phase", "number", "steps"),
    [("training", signal.SIGINT, 2), ("evaluating", signal.SIGTERM, 5), ("saving", signal.SIGHUP, 4)],
)
def test_interrupted_training_keeps_all_complete_steps_and_resumes(
    phase: str, number: int, steps: int, text: Path, tmp_path: Path, uninterrupted: dict[str, bytes | str]
) -> None:
    command = Command(training(text, tmp_path / "run"), PATCH + PHASES[phase])
    command.wait_for("NOW")
    command.send(number)
    if number == signal.SIGHUP:
        assert command.end() == 130  # after SIGHUP nobody reads the output
        assert "Traceback" not in command.printed
    else:
        assert_tidy(command, f"coupledqk train --resume {tmp_path / 'run'}")
    newest = Checkpoints(tmp_path / "run/checkpoints", keep=2).newest()
    assert newest is not None
    assert damage(newest) is None
    assert newest.name == f"step-{steps:07d}"
    assert RunFolder(tmp_path / "run").status == "interrupted"
    resumed = run_to(tiny(text, "standard", threads=1), tmp_path / "run")
    assert trained_bits(resumed) == uninterrupted


def test_a_second_signal_stops_training_at_once(text: Path, tmp_path: Path) -> None:
    patch = PATCH + PHASES["training"].replace("wait()", f"exec({BLOCK.format(mark='NOW')!r})")
    command = Command(training(text, tmp_path / "run"), patch)
    command.wait_for("NOW")
    command.send(signal.SIGINT)
    command.wait_for("press Ctrl-C again to stop immediately")
    command.send(signal.SIGINT)
    assert_tidy(command, f"coupledqk train --resume {tmp_path / 'run'}")


def test_a_signal_during_the_final_measures_loses_no_step(
    text: Path, tmp_path: Path, uninterrupted: dict[str, bytes | str]
) -> None:
    """All steps are saved, so the command stops without waiting."""
    patch = f"{PATCH}\ndef stuck(*given): {BLOCK.format(mark='NOW')}\nTask.final_measures = stuck"
    command = Command(training(text, tmp_path / "run"), patch)
    command.wait_for("NOW")
    command.send(signal.SIGTERM)
    assert_tidy(command, f"coupledqk train --resume {tmp_path / 'run'}")
    assert trained_bits(run_to(tiny(text, "standard", threads=1), tmp_path / "run")) == uninterrupted


def test_a_signal_during_the_report_of_a_sweep_stops_the_command(text: Path, tmp_path: Path) -> None:
    """The scheduling process stops its workers, and a report that is interrupted says that the same command resumes."""
    settings = [f"--{name}={value}" for name, value in {**TINY, "corpus": text, "steps": 2}.items() if name != "lr"]
    settings = [word for word in settings if not word.startswith("--warmup")]
    words = ["sweep", "--out", str(tmp_path / "grid"), "--jobs=1", *settings, "--lrs", "1e-3", "1e-2"]
    stuck = f"""
import coupledqk.report.lab_page as page
def write_report(*given): {BLOCK.format(mark="REPORTING")}
page.write_report = write_report"""
    command = Command(words, stuck)
    command.wait_for("REPORTING")
    command.send(signal.SIGINT)
    assert_tidy(command, "the same command resumes")
