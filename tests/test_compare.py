"""The command `coupledqk compare`: its choice of runs, when it stops, and its answer for each possible outcome."""

import argparse
import dataclasses
import inspect
import itertools
import json
import random
import re
import shutil
import typing
from collections.abc import Sequence
from pathlib import Path

import pytest

from coupledqk.cli import main
from coupledqk.errors import CoupledQKError
from coupledqk.lab import budget, compare, laboratory
from coupledqk.lab.answer import answer
from coupledqk.lab.budget import (
    FEWEST_PAIRS,
    LENGTHS,
    MOST_PAIRS,
    Choice,
    Mode,
    Text,
    Timing,
    choose,
    fastest,
    fit,
    open_text,
    settings_of,
)
from coupledqk.lab.compare import COUPLED, OTHERS, Comparison
from coupledqk.outcome import Claim, Outcome
from coupledqk.outcome_file import read
from coupledqk.recipes import recipe
from coupledqk.run_folder import identity, variant_name
from coupledqk.statistics import Estimate, SequentialTest, compare_prior, sequential, student_quantile
from test_lab_report import make_outcome
from test_report import text_of
from test_runner import Pretend, Watch

NOVEL = Text("/texts/novel.txt", "novel", "abc", train_tokens=5_000_000, valid_tokens=200_000)
SPEEDS = {"standard": (30_000.0, 28_000.0, 31_000.0), "euler": (25_000.0, 20_000.0, 26_000.0)}
TIMING, ALONE = Timing(SPEEDS, jobs=2), Timing(SPEEDS, jobs=1)
CLAIM = Claim("euler is better", "lower", "euler", "standard", primary=True)
COHERENCE = {"novel": {"gain": 0.81, "interval": (0.7, 0.9), "n_documents": 40, "context_bytes": 1_000_000}}


@pytest.fixture(autouse=True)
def _fewer_draws(monkeypatch: pytest.MonkeyPatch):
    """Uses fewer draws to simulate the levels of the sequential test, which need not be exact here."""
    monkeypatch.setattr(sequential, "DRAWS", 4_000)
    sequential._scale.cache_clear()
    yield
    sequential._scale.cache_clear()


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """A text of about 350 KB."""
    file = tmp_path / "texts" / "modules.txt"
    file.parent.mkdir()
    file.write_text("\n".join(inspect.getsource(module) for module in (argparse, inspect, typing)))
    return file


# --- what is chosen ---------------------------------------------------------------------------------------------------------


def test_a_longer_budget_trains_longer_and_then_adds_pairs() -> None:
    budgets = (8, 15, 30, 120)
    chosen = [fit(NOVEL, TIMING, minutes) for minutes in budgets]
    assert [choice.steps for choice in chosen] == [LENGTHS[0], LENGTHS[0], LENGTHS[-1], LENGTHS[-1]]
    assert chosen[1].pairs > chosen[0].pairs
    assert chosen[3].pairs > 3 * chosen[2].pairs
    assert chosen[3].detectable < chosen[2].detectable
    assert all(0.85 * minutes < choice.minutes <= minutes for choice, minutes in zip(chosen, budgets, strict=True))
    assert fit(NOVEL, ALONE, 120).pairs < chosen[3].pairs


def test_the_number_of_pairs_of_a_very_long_budget_is_limited() -> None:
    week = fit(NOVEL, TIMING, 7 * 24 * 60)
    assert week.pairs == MOST_PAIRS
    assert week.minutes < 7 * 24 * 60 / 2
    assert week.detectable < 0.006


def test_the_expected_duration_includes_all_that_the_command_does() -> None:
    def minutes(pairs: int, **changed: object) -> float:
        return dataclasses.replace(TIMING, **changed).minutes(NOVEL, 4_000, pairs)  # pyright: ignore[reportArgumentType]

    tokens = 4_000 * 8 * 128 + 5 * NOVEL.valid_tokens / 3  # four evaluations and the loss by position, forward only
    valid = 131_072  # the recipe validates on a sample
    run = (
        budget.MARGIN * (tokens - 5 * (NOVEL.valid_tokens - valid) / 3) * (1 / 30_000 + 1 / 25_000) / 2 + budget.PER_RUN
    )
    assert 60 * (minutes(8) - minutes(5)) == pytest.approx(3 * run)
    assert minutes(8, jobs=16) == pytest.approx(minutes(1, jobs=2)), "all runs at a time take as long as one"
    assert minutes(8, jobs=15) == pytest.approx(minutes(2, jobs=2)), "a run that is left over takes as long again"
    assert 60 * (minutes(8, spent=90.0) - minutes(8)) == pytest.approx(90)
    assert 60 * (minutes(8, mode=Mode(compiled=True)) - minutes(8)) == pytest.approx(2 * budget.COMPILING)


def test_the_number_of_passes_over_a_text_is_limited() -> None:
    short = dataclasses.replace(NOVEL, train_tokens=300_000)
    choice = fit(short, TIMING, 1000)
    assert (choice.steps, choice.tokens) == (2_000, 300_000)
    assert choice.passes == "6.8 passes"


def test_a_budget_that_is_too_small_is_refused_and_a_sufficient_one_named() -> None:
    with pytest.raises(CoupledQKError, match=r"--minutes 8 allows [23] pairs .*80% power to detect \d+\.\d%") as error:
        fit(NOVEL, ALONE, 8)
    assert "expected at least 4 pairs, to detect 5%: give --minutes " in str(error.value)
    enough = int(str(error.value).split()[-1])
    assert fit(NOVEL, ALONE, enough).pairs >= FEWEST_PAIRS
    with pytest.raises(CoupledQKError, match=r"allows .* pairs .*expected at least 100 pairs, one per seed"):
        fit(NOVEL, ALONE, 10, n_seeds=100)


def test_a_choice_is_stored_so_that_the_same_command_finds_its_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    speeds = iter([20_000.0, 90_000.0, 90_000.0])
    monkeypatch.setattr(budget, "measure_speeds", lambda *_: dict.fromkeys(COUPLED, (next(speeds),)))
    first, again, other = (choose(NOVEL, COUPLED, minutes, 1, tmp_path) for minutes in (19, 19, 18))
    assert first == again
    assert (other.steps, other.pairs) > (first.steps, first.pairs)
    with pytest.raises(CoupledQKError, match="holds a comparison on another text, or novel has changed"):
        choose(dataclasses.replace(NOVEL, hash="def"), COUPLED, 19, 1, tmp_path)


EAGER, COMPILED, BFLOAT16 = Mode(), Mode(True), Mode(True, "bf16")


@pytest.mark.parametrize(
    ("gains", "minutes", "has", "expected"),
    [
        ({COMPILED: 1.3, BFLOAT16: 1.5}, 30, True, BFLOAT16),
        ({COMPILED: 1.3, BFLOAT16: 1.2}, 30, True, COMPILED),
        ({COMPILED: 1.3, BFLOAT16: 1.5}, 30, False, COMPILED),
        ({COMPILED: 0.9, BFLOAT16: 0.8}, 30, True, EAGER),
        ({COMPILED: 1.3, BFLOAT16: 1.5}, 5, True, EAGER),
    ],
)
def test_the_fastest_mode_is_chosen_if_the_budget_is_long_enough(
    monkeypatch: pytest.MonkeyPatch, gains: dict[Mode, float], minutes: float, has: bool, expected: Mode
) -> None:
    speeds = {mode: (20_000.0 * gain,) for mode, gain in {EAGER: 1.0, **gains}.items()}
    monkeypatch.setattr(budget, "measure_speeds", lambda names, mode: dict.fromkeys(names, speeds[mode]))
    monkeypatch.setattr(budget, "has_bfloat16", lambda: has)
    assert fastest(COUPLED, minutes) == (dict.fromkeys(COUPLED, speeds[expected]), expected)


def test_a_failing_compiler_does_not_stop_a_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(names: Sequence[str], mode: Mode) -> dict[str, tuple[float, ...]]:
        if mode.compiled:
            raise RuntimeError("no working C++ compiler found")
        return dict.fromkeys(names, (20_000.0,))

    monkeypatch.setattr(budget, "measure_speeds", measure)
    assert fastest(COUPLED, 30) == (dict.fromkeys(COUPLED, (20_000.0,)), EAGER)


def test_runs_use_the_mode_and_only_its_precision_is_part_of_their_identity() -> None:
    choice = fit(NOVEL, TIMING, 30)
    eager, compiled, bfloat16 = (
        recipe(budget.RECIPE, **settings_of(NOVEL, dataclasses.replace(choice, mode=mode)))
        for mode in (EAGER, COMPILED, BFLOAT16)
    )
    assert [run.runtime.compile for run in (eager, compiled, bfloat16)] == [False, True, True]
    assert [run.train.precision for run in (eager, compiled, bfloat16)] == ["fp32", "fp32", "bf16"]
    assert identity(eager) == identity(compiled) != identity(bfloat16)


# --- when it stops ----------------------------------------------------------------------------------------------------------


class Noisy(Pretend):
    """An engine whose runs have the given effect and noise."""

    def __init__(self, effect: float, noise: float, bits: float) -> None:
        super().__init__()
        self.effect, self.noise, self.bits = effect, noise, bits

    def start(self, config, folder):
        super().start(config, folder)
        name = variant_name(config)
        draw = random.Random(f"{name} {config.seed}").gauss(0, self.noise)
        value = 40 * (1 + draw + (self.effect if name == "euler" else 0))
        result = json.loads((folder / "result.json").read_text())
        record = {"loss": 1.0, "perplexity": value, "bits_per_byte": self.bits}
        grams = [
            {"order": n, "perplexity": 9.0, "bits_per_byte": b, "train_tokens": 9} for n, b in ((2, 1.8), (5, 1.5))
        ]
        (folder / "result.json").write_text(json.dumps({**result, "best": record, "final": record, "baselines": grams}))


@pytest.fixture
def comparing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Runs a comparison of at most 12 pairs with a pretended effect and noise."""

    def run(
        effect: float, noise: float, seeds: tuple[int, ...] = (), minutes: float = 99, bits: float = 1.7
    ) -> tuple[Outcome, int]:
        engine = Noisy(effect, noise, bits)
        monkeypatch.setattr(laboratory, "LocalPool", lambda jobs: engine)
        monkeypatch.setattr(compare, "coherence", lambda texts: (_ for _ in ()).throw(CoupledQKError("no documents")))
        monkeypatch.setattr(compare, "open_corpus", lambda config: argparse.Namespace(stream=lambda: iter(())))
        choice = Choice(400, 100_000, 4_096, 12, 30.0, SPEEDS)
        out = tmp_path / f"{effect} {noise}"
        found = Comparison(NOVEL, choice, COUPLED, seeds or tuple(range(12)), not seeds, minutes, 1, out)
        found.run(Watch())
        return found.conclude(), len(engine.started)

    return run


def test_a_comparison_stops_at_the_first_conclusive_pair(comparing) -> None:
    outcome, trained = comparing(effect=-0.10, noise=0.01)
    assert outcome.verdicts[0].finding == "supported"
    assert trained == 2 * outcome.rows[0].n < 24
    assert outcome.answer[0].startswith("Coupling helps on novel")


def test_an_interrupted_comparison_has_no_verdict(comparing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Comparison, "conclude", lambda self: read(self.plan(1).outcome))
    outcome, trained = comparing(effect=-0.10, noise=0.01)
    assert min(row.n for row in outcome.rows) == trained // 2 >= 4
    assert outcome.verdicts == ()


def test_a_comparison_stops_when_equivalence_is_shown(comparing) -> None:
    outcome, trained = comparing(effect=0.0, noise=0.001)
    assert outcome.verdicts[0].finding == "equivalent"
    assert trained < 24


def test_an_inconclusive_comparison_uses_its_budget_and_states_what_a_longer_one_could_detect(comparing) -> None:
    outcome, trained = comparing(effect=0.0, noise=0.05)
    assert outcome.verdicts[0].finding == "inconclusive"
    assert trained == 24
    assert "With 4 times as many pairs it would have 80% power to detect " in outcome.answer[0]
    assert "1.20× the time for the same tokens (1.19 to 1.40 in 3 interleaved rounds)" in outcome.answer[0]
    assert (
        "standard reaches 1.700 bits per byte (n-gram models of the same text: bigram 1.800, 5-gram 1.500)."
        in outcome.answer[0]
    )


def test_the_answer_begins_with_no_conclusion_if_models_are_no_better_than_bigrams(comparing) -> None:
    outcome, _ = comparing(effect=-0.10, noise=0.01, bits=1.9)
    assert outcome.answer[0].startswith(
        "On novel, 1.900 bits per byte is not below the 1.800 of a bigram model of the same text: no conclusion about "
        "attention is possible. In these runs the perplexity of euler is −"
    )
    assert "helps" not in outcome.answer[0]
    assert "a larger --minutes makes longer runs" in outcome.answer[0]


def test_a_comparison_stops_when_its_time_is_up(comparing, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(step=20)
    monkeypatch.setattr(compare.time, "monotonic", lambda: next(clock))
    outcome, trained = comparing(effect=0.0, noise=0.05, minutes=4)
    assert 8 < trained < 16
    assert outcome.rows[1].n == trained // 2
    assert outcome.verdicts[0].finding == "inconclusive"


def test_the_outlook_does_not_depend_on_the_number_of_pairs_that_did_not_fit(
    comparing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 12 planned pairs about half are trained, and their test is stricter than the last one of a shorter plan."""
    clock = itertools.count(step=20)
    monkeypatch.setattr(compare.time, "monotonic", lambda: next(clock))
    outcome, trained = comparing(effect=0.0, noise=0.05, minutes=4)
    n, evidence, prior = trained // 2, outcome.verdicts[0].evidence, compare_prior()
    assert evidence is not None
    assert evidence.df is not None
    width = evidence.interval[1] - evidence.effect
    error = width / student_quantile((1 + evidence.confidence) / 2, evidence.df)
    shorter, longer = (SequentialTest(pairs, prior_df=prior.df) for pairs in (n, 4 * n))
    alone = Estimate(0, error, evidence.df).detectable_effect(shorter.nominal_level(n))
    expected = 100 * alone * longer.detectable_effect(1.0) / shorter.detectable_effect(1.0)
    (said,) = re.findall(r"With 4 times as many pairs it would have 80% power to detect ([\d.]+)%", outcome.answer[0])
    assert float(said) == pytest.approx(expected, rel=0.07)
    assert evidence.detectable > 1.2 * alone


def test_the_same_command_adds_the_remaining_pairs_and_gives_the_same_answer(
    comparing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once, _ = comparing(effect=0.0, noise=0.05)
    shutil.rmtree(tmp_path / "0.0 0.05")
    with monkeypatch.context() as patched:
        clock = itertools.count(step=20)
        patched.setattr(compare.time, "monotonic", lambda: next(clock))
        first, trained = comparing(effect=0.0, noise=0.05, minutes=4)
    assert f"adds the planned pairs that did not fit into the budget ({12 - trained // 2})." in first.answer[0]
    second, rest = comparing(effect=0.0, noise=0.05)
    assert trained + rest == 24
    assert second.verdicts == at_once.verdicts
    assert second.answer == at_once.answer


def test_a_comparison_whose_runs_all_failed_gives_the_reason_and_exit_code_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    choice = Choice(400, 100_000, 4_096, 4, 30.0, SPEEDS)
    failing = Comparison(NOVEL, choice, COUPLED, tuple(range(4)), True, 30, 1, tmp_path / "out")
    monkeypatch.setattr(laboratory, "LocalPool", lambda jobs: Pretend(failing="novel"))
    monkeypatch.setattr(compare, "open_corpus", lambda config: argparse.Namespace(stream=lambda: iter(())))
    monkeypatch.setattr(Comparison, "open", lambda *_: failing)
    with pytest.raises(SystemExit) as ended:
        main(["compare", "--corpus", "novel.txt", "--out", str(tmp_path / "out")])
    assert ended.value.code == 1
    said = capsys.readouterr()
    assert "standard seed 0: no luck" in said.err
    assert "inconclusive" in said.out


def test_given_seeds_are_all_trained_and_tested_once(comparing) -> None:
    outcome, trained = comparing(effect=-0.10, noise=0.01, seeds=(3, 4, 5, 6, 7, 8))
    assert trained == 12
    evidence = outcome.verdicts[0].evidence
    assert evidence is not None
    assert evidence.confidence == pytest.approx(0.95)


def test_sequential_tests_are_stricter_before_the_last_which_is_almost_a_single_test() -> None:
    choice = Choice(400, 100_000, 4_096, 12, 30.0, SPEEDS)
    comparison = Comparison(NOVEL, choice, COUPLED, tuple(range(12)), True, 30, 1, Path("out"))
    levels = [comparison.level(n) for n in range(FEWEST_PAIRS, 13)]
    assert levels == sorted(levels)
    assert levels[0] < 0.01
    assert 0.02 < levels[-1] < 0.05


def test_a_single_test_detects_slightly_smaller_effects_than_sequential_tests() -> None:
    choice = Choice(400, 100_000, 4_096, 12, 30.0, SPEEDS)
    in_turn, once = (
        Comparison(NOVEL, choice, COUPLED, tuple(range(12)), sequential, 30, 1, Path("out"))
        for sequential in (True, False)
    )
    assert 0.8 * in_turn.detectable < once.detectable < in_turn.detectable
    assert f"80% power to detect an effect of {100 * once.detectable:.1f}%" in once.describe()
    assert "at most 12 pairs" in in_turn.describe()
    assert "at most" not in once.describe()


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
def test_the_answer_states_the_finding_its_certainty_and_its_power(euler: float, noise: float, begins: str) -> None:
    outcome = make_outcome({"standard": 40.0, "euler": euler}, claims=[CLAIM], noise=noise)
    finding, coherence = answer(outcome, "novel", COHERENCE, slowdowns=[1.2, 1.5, 1.3])
    evidence = outcome.verdicts[0].evidence
    assert evidence is not None
    assert finding.startswith(begins.format(size=f"{abs(evidence.effect):.2%}"))
    assert f"The comparison had 80% power to detect an effect of {evidence.detectable:.2%}." in finding
    assert "95% interval" in finding
    assert "5 paired seeds, p " in finding
    assert "It costs 0 more parameters (+0.00%) and 1.30× the time for the same tokens (1.20 to 1.50 in 3 " in finding
    assert coherence.startswith(
        "Coherence of novel: 0.810 bits per byte (95% interval 0.700 to 0.900, over 40 documents)"
    )


def test_the_answer_for_one_seed_is_inconclusive() -> None:
    outcome = make_outcome({"standard": 40.0, "euler": 30.0}, seeds=[0], claims=[CLAIM])
    finding, coherence = answer(outcome, "novel", {}, "the corpus has 3 documents")
    assert finding.startswith("The comparison on novel is inconclusive: 1 seed: a test needs two")
    assert coherence == "The coherence of novel was not measured: the corpus has 3 documents."
    objecting, _ = answer(outcome, "novel", {}, objection="no conclusion is possible")
    assert objecting.startswith(
        "On novel, no conclusion is possible. The claim was not tested: 1 seed: a test needs two"
    )


@pytest.mark.parametrize(
    ("variants", "seeds", "command"),
    [
        (COUPLED, (), "coupledqk compare --corpus novel --minutes 30"),
        ((*COUPLED, "mine"), (), "coupledqk compare --corpus novel --minutes 30 --variants mine"),
        (
            (*COUPLED, "mine", *OTHERS),
            (3, 5),
            "coupledqk compare --corpus novel --minutes 30 --all --variants mine --seeds 3 5",
        ),
    ],
)
def test_the_recorded_command_makes_the_same_comparison(variants, seeds, command) -> None:
    choice = Choice(400, 100_000, 4_096, 12, 30.0, SPEEDS)
    assert Comparison(NOVEL, choice, variants, seeds or (0, 1), not seeds, 30, 1, Path("out")).command == command


def test_a_misspelled_variant_is_reported_before_the_text_is_read(tmp_path: Path) -> None:
    with pytest.raises(CoupledQKError, match="unknown variant 'eulr': did you mean 'euler'"):
        compare.compare(str(tmp_path / "nowhere"), variants=["standard", "eulr"], out=tmp_path)


@pytest.mark.parametrize("variants", [(), ("standard",), ("standard", "euler", "euler")])
def test_a_comparison_needs_two_different_variants(variants) -> None:
    with pytest.raises(CoupledQKError, match="expected a baseline and at least one other, each once"):
        Comparison.open("novel", 30, variants)


def test_secondary_claims_are_sorted_by_finding() -> None:
    means = {"standard": 40.0, "euler": 38.0, "kick": 38.0, "drift": 40.0, "linear": 42.0}
    claims = [CLAIM, *(Claim(f"{name} is better", "lower", name, "standard") for name in ("kick", "drift", "linear"))]
    finding, _ = answer(make_outcome(means, claims=claims), "novel", COHERENCE)
    assert finding.endswith("kick: better than standard; linear: worse than standard; drift: inconclusive.")


# --- from end to end --------------------------------------------------------------------------------------------------------


def test_a_repeated_comparison_on_a_text_trains_nothing_twice(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(budget, "LENGTHS", (4,))
    monkeypatch.setattr(budget, "ROUNDS", 2)
    monkeypatch.setattr(budget, "ROUND_STEPS", 1)
    monkeypatch.setattr(budget, "COMPILE_MINUTES", 1_000.0)
    monkeypatch.setenv("COUPLEDQK_CACHE", str(tmp_path / "cache"))
    command = ["compare", "--corpus", str(texts), "--jobs", "1", "--minutes", "99", "--out", str(tmp_path / "out")]
    main([*command, "--seeds", "0-1", "--dry-run"])
    plan = " ".join(capsys.readouterr().out.split())
    assert "modules: 2 pairs of runs of 4 steps, one pass over a sample of 4,096 of the" in plan
    assert "80% power to detect an effect of " in plan
    main([*command, "--seeds", "0-1"])
    said = capsys.readouterr()
    assert said.out.startswith("On modules, ")
    assert "no conclusion about attention is possible. In these runs the perplexity of euler is" in " ".join(
        said.out.split()
    )
    assert "The coherence of modules was not measured: the corpus has" in " ".join(said.out.split())
    outcome = read(tmp_path / "out" / "compare-mini.json")
    assert [(row.label, row.n) for row in outcome.rows] == [("standard", 2), ("euler", 2)]
    assert outcome.rows[1].change is not None
    assert str(tmp_path) not in (tmp_path / "out" / "compare-mini.json").read_text(), "no path of this machine"
    page = text_of((tmp_path / "out" / "compare.html").read_text("utf-8"))
    assert all(paragraph in page for paragraph in outcome.answer)

    trained = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "runs").rglob("result.json")}
    main([*command, "--seeds", "0-1"])
    assert "4 of 4 runs are already finished" in (again := capsys.readouterr()).err
    assert again.out == said.out
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "runs").rglob("result.json")} == trained
    assert len(trained) == 4


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "no text given"),
        (["--corpus", "nowhere.txt"], "there is no file or folder nowhere.txt"),
        (["--corpus", "short.txt"], "short.txt is too small to compare on: it has less than 256,000 characters"),
        (["--corpus", "modules.txt", "--seeds", "3"], "--seeds 3: expected at least two"),
        (["--corpus", "modules.txt", "--jobs", "0"], "--jobs 0: expected 1 to 10,000"),
    ],
)
def test_bad_arguments_give_one_line_errors(
    arguments: list[str], says: str, texts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(texts.parent)
    Path("short.txt").write_text("once upon a time")
    with pytest.raises(SystemExit):
        main(["compare", *arguments])
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


def test_a_text_that_is_too_small_or_too_repetitive_to_train_on_is_refused(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COUPLEDQK_CACHE", str(tmp_path / "cache"))
    with pytest.raises(
        CoupledQKError,
        match=r"modules.txt is too small .*, expected at least 256,000, which is .* times",
    ):
        open_text(str(texts))
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=5)) for _ in range(2_000)]
    (tmp_path / "split").mkdir()
    (tmp_path / "split" / "train.txt").write_text(" ".join(draw.choices(words, k=200_000)))
    (tmp_path / "split" / "valid.txt").write_text("")
    with pytest.raises(CoupledQKError, match=r"it has 0 validation tokens \(0 bytes\), expected at least 4,096$"):
        open_text(str(tmp_path / "split"))
    (tmp_path / "repetitive.txt").write_text("aaaa " * 100_000)
    with pytest.raises(
        CoupledQKError,
        match=r"repetitive.txt is too repetitive to compare on: .* of only \d+ tokens, expected 1,024; use text that",
    ):
        open_text(str(tmp_path / "repetitive.txt"))
