"""The question of every user, from a text to an answer in words; and what the words are for each possible outcome."""

import argparse
import dataclasses
import inspect
from pathlib import Path
from typing import Any

import pytest

from coupledqk.cli import main
from coupledqk.errors import CoupledQKError
from coupledqk.lab import compare
from coupledqk.lab.answer import answer
from coupledqk.lab.compare import LENGTHS, Text, choose, fit, open_text
from coupledqk.outcome import Claim, read
from test_lab_report import make_outcome
from test_report import text_of

NOVEL = Text("/texts/novel.txt", "novel", "abc", train_tokens=600_000, valid_tokens=30_000)
CLAIM = Claim("euler is better", "lower", "euler", "standard", primary=True)
COHERENCE = {"novel": {"gain": 0.81, "interval": (0.7, 0.9), "n_documents": 40, "context_bytes": 1_000_000}}


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """About 200 KB."""
    file = tmp_path / "texts" / "modules.txt"
    file.parent.mkdir()
    file.write_text("\n".join(inspect.getsource(module) for module in (argparse, inspect)))
    return file


# --- what is chosen ---------------------------------------------------------------------------------------------------------


def test_the_longest_training_that_fits_the_budget_is_chosen_and_never_more_text_than_there_is() -> None:
    speeds = {"standard": 30_000.0, "euler": 25_000.0}
    chosen = [fit(NOVEL, speeds, minutes, jobs=1) for minutes in (6, 10, 30, 1000)]
    assert [choice.steps for choice in chosen] == sorted(choice.steps for choice in chosen)
    assert all(choice.minutes <= minutes for choice, minutes in zip(chosen, (6, 10, 30, 1000), strict=True))
    assert chosen[-1].tokens <= NOVEL.train_tokens < 2 * chosen[-1].tokens
    assert chosen[-1].valid_tokens == 30_000
    assert fit(NOVEL, speeds, 6, jobs=2).steps > chosen[0].steps


def test_a_budget_too_small_is_refused_with_the_smallest_that_would_do() -> None:
    speeds = {"standard": 30_000.0, "euler": 25_000.0}
    with pytest.raises(CoupledQKError, match=r"1 minutes are too few: 10 runs .* give --minutes (\d+)") as error:
        fit(NOVEL, speeds, 1, jobs=1)
    smallest = int(str(error.value).split()[-1])
    assert fit(NOVEL, speeds, smallest, jobs=1).steps == LENGTHS[0]


def test_a_choice_is_kept_so_that_the_same_question_finds_its_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    speeds = iter([20_000.0, 90_000.0, 90_000.0])
    monkeypatch.setattr(compare, "measure_speeds", lambda *_: dict.fromkeys(compare.COUPLED, next(speeds)))
    first, again, other = (choose(NOVEL, compare.COUPLED, minutes, 1, tmp_path) for minutes in (8, 8, 9))
    assert first == again
    assert other.steps > first.steps
    with pytest.raises(CoupledQKError, match="holds a comparison on another text, or novel has changed"):
        choose(dataclasses.replace(NOVEL, hash="def"), compare.COUPLED, 8, 1, tmp_path)


# --- the answer -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("euler", "noise", "begins"),
    [
        (38.0, 0.2, "Coupling helps on novel: the perplexity of euler is −{size} against that of standard"),
        (42.0, 0.2, "Coupling hurts on novel: the perplexity of euler is +{size} against that of standard"),
        (40.0, 0.2, "The comparison on novel is inconclusive: the perplexity of euler is "),
        (40.0, 0.02, "Coupling makes no difference of 1% or more on novel: the perplexity of euler is "),
    ],
)
def test_the_answer_says_what_came_out_how_sure_it_is_and_what_it_could_detect(
    euler: float, noise: float, begins: str
) -> None:
    outcome = make_outcome({"standard": 40.0, "euler": euler}, claims=[CLAIM], noise=noise)
    finding, coherence = answer(outcome, "novel", COHERENCE)
    evidence = outcome.verdicts[0].evidence
    assert evidence is not None
    assert finding.startswith(begins.format(size=f"{abs(evidence.effect):.2%}"))
    assert f"The comparison had 80% power to detect an effect of {evidence.detectable:.2%}." in finding
    assert "95% interval" in finding
    assert "5 paired seeds, p " in finding
    assert "It costs 0 more parameters (+0.00%) and 1.00× the time" in finding
    assert coherence.startswith(
        "Coherence of novel: 0.810 bits per byte (95% interval 0.700 to 0.900, over 40 documents)"
    )


def test_one_seed_gives_no_answer_and_says_so() -> None:
    outcome = make_outcome({"standard": 40.0, "euler": 30.0}, seeds=[0], claims=[CLAIM])
    finding, coherence = answer(outcome, "novel", {}, "the corpus has 3 documents")
    assert finding.startswith("The comparison on novel is inconclusive: 1 seed: a test needs two")
    assert coherence == "The coherence of novel was not measured: the corpus has 3 documents."


def test_what_else_was_asked_is_sorted_by_what_came_out() -> None:
    means = {"standard": 40.0, "euler": 38.0, "kick": 38.0, "drift": 40.0, "linear": 42.0}
    claims = [CLAIM, *(Claim(f"{name} is better", "lower", name, "standard") for name in ("kick", "drift", "linear"))]
    finding, _ = answer(make_outcome(means, claims=claims), "novel", COHERENCE)
    assert finding.endswith("kick: better than standard; linear: worse than standard; drift: inconclusive.")


# --- from end to end --------------------------------------------------------------------------------------------------------


def test_a_text_is_compared_on_and_asked_again_nothing_is_trained_twice(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compare, "LENGTHS", (4,))
    monkeypatch.setattr(compare, "SEEDS", (0, 1))
    monkeypatch.setattr(compare, "PROBE_STEPS", 4)
    monkeypatch.setenv("COUPLEDQK_CACHE", str(tmp_path / "cache"))
    command: list[Any] = [
        "compare",
        "--corpus",
        str(texts),
        "--jobs",
        "1",
        "--minutes",
        "99",
        "--out",
        str(tmp_path / "out"),
    ]
    main(command)
    said = capsys.readouterr()
    assert "4 runs of 4 steps: 4 passes over the first 2,048 of " in said.err
    assert "on modules" in said.out
    assert "The coherence of modules was not measured: the corpus has" in said.out
    outcome = read(tmp_path / "out" / "compare-mini.json")
    assert [(row.label, row.n) for row in outcome.rows] == [("standard", 2), ("euler", 2)]
    assert outcome.rows[1].change is not None
    assert str(tmp_path) not in (tmp_path / "out" / "compare-mini.json").read_text(), "no path of this machine"
    page = text_of((tmp_path / "out" / "compare.html").read_text("utf-8"))
    assert all(paragraph in page for paragraph in outcome.answer)

    trained = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "runs").rglob("result.json")}
    main(command)
    assert "4 of 4 runs were finished before" in (again := capsys.readouterr()).err
    assert again.out == said.out
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "runs").rglob("result.json")} == trained
    assert len(trained) == 4


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "which text?"),
        (["--corpus", "nowhere.txt"], "there is no file or folder nowhere.txt"),
        (["--corpus", "short.txt"], "short.txt is too small to compare on: it has less than 77,824 characters"),
        (["--corpus", "modules.txt", "--jobs", "0"], "--jobs 0: expected at least 1"),
    ],
)
def test_mistakes_are_said_in_one_line(
    arguments: list[str], says: str, texts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(texts.parent)
    Path("short.txt").write_text("once upon a time")
    with pytest.raises(SystemExit):
        main(["compare", *arguments])
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


def test_a_text_with_too_little_to_train_on_is_refused(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COUPLEDQK_CACHE", str(tmp_path / "cache"))
    with pytest.raises(CoupledQKError, match=r"modules.txt is too small .* [\d,]+ training tokens .*, expected 77,824"):
        open_text(str(texts))
