"""Fits `compare` into a time budget: the length of the runs, the amount of text, and the number of pairs of seeds."""

import itertools
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from ..config import text_of
from ..data.corpora import open_corpus
from ..data.shards import Progress, prepare
from ..data.tokenizers import SmallVocabularyError
from ..errors import CoupledQKError
from ..files import FileError
from ..recipes import RECIPES, recipe
from ..run_folder import task_name
from ..schema import from_dict
from ..sealed import read_sealed_json, write_json
from ..statistics import SequentialTest, compare_prior
from ..terminal import status
from .speed import has_bfloat16, training_speeds

RECIPE = "mini-modern"
LENGTHS = (2_000, 4_000)
"""Numbers of training steps to choose from; the last one is the recipe's. On 4 MB of web text, models trained for 500
or 1,000 steps were worse than bigram models, and paired differences had a standard deviation of 7% (10 and 4 pairs). Models
trained for 2,000 steps were better than bigram models, and the standard deviation was 0.7% (4 pairs)."""
FEWEST_PAIRS, ENOUGH_PAIRS = 4, 8
"""Number of pairs before the first test, and number of pairs that must fit into the budget before runs are made longer."""
MOST_PAIRS = 200
"""Maximum number of pairs: these detect effects far below the margin of equivalence."""
LARGEST_EFFECT = 0.05
"""A budget without the power to detect a relative effect of this size is refused."""
MOST_PASSES = 8
"""Maximum number of passes over the training text."""
FEWEST_VALID = 4_096
EVALUATIONS = 4
ADVICE = "move it away; the speed is then measured again"
"""Advice if the file with the choice is damaged."""
ROUNDS, ROUND_STEPS = 7, 4
"""Number of interleaved rounds in which the speed of each variant is measured, and training steps per round."""
COMPILE_MINUTES = 20.0
"""Minimum budget in minutes for trying compiled models, since compilation takes up to a minute."""
STARTING, COMPILING, FINISHING = 8.0, 18.0, 8.0
"""Seconds until a process takes its first training step, seconds to compile one variant, and seconds to write the answer and
the report at the end."""
PER_RUN, MARGIN = 1.5, 1.05
"""Seconds per run for checkpoints and n-gram baselines, and the slowdown of runs that share the machine."""

_BYTES = 2.9  # bytes of English text per training token; a tenth of the text is held out for validation and testing
_TRAIN = RECIPES[RECIPE].train
_STEP_TOKENS = _TRAIN.batch_size * _TRAIN.seq_len


@dataclass(frozen=True)
class Text:
    """A corpus that is ready to train on."""

    corpus: str
    name: str
    hash: str
    train_tokens: int
    valid_tokens: int


@dataclass(frozen=True)
class Mode:
    """Execution mode of models."""

    compiled: bool = False
    """Whether models are compiled with torch.compile."""
    precision: str = "fp32"
    """Precision of matrix products."""

    def __str__(self) -> str:
        return (
            "compiled" + " and computed in bfloat16" * (self.precision == "bf16") if self.compiled else "not compiled"
        )


@dataclass(frozen=True)
class Choice:
    """The runs that fit into a budget."""

    steps: int
    """Number of training steps of each run."""
    tokens: int
    """Number of tokens in the sample of the training text."""
    valid_tokens: int
    pairs: int
    """Number of seeds; every variant is trained once per seed."""
    minutes: float
    """Expected duration of all runs."""
    speeds: dict[str, tuple[float, ...]]
    """Training speed of each variant in tokens per second, one value per interleaved round."""
    mode: Mode = Mode()

    @property
    def passes(self) -> str:
        """The number of passes over the sample, in words."""
        number = self.steps * _STEP_TOKENS / self.tokens
        return "one pass" if number == 1 else f"{number:.2g} passes"

    @property
    def detectable(self) -> float:
        """The effect that the comparison has 80% power to detect, if pairs vary as in earlier comparisons."""
        return detectable_effect(self.pairs)

    def slowdowns(self, variant: str, baseline: str = "standard") -> list[float]:
        """Time per token of a variant relative to the baseline, one value per round."""
        return [b / v for v, b in zip(self.speeds[variant], self.speeds[baseline], strict=True)]


def detectable_effect(pairs: int, sd: float | None = None) -> float:
    """The effect that the sequential test detects with 80% power, given the standard deviation `sd` of the pairs' differences.

    By default `sd` is that of earlier comparisons.
    """
    if pairs < 2:
        return math.inf
    prior = compare_prior()
    return SequentialTest(pairs, min(FEWEST_PAIRS, pairs), prior_df=prior.df).detectable_effect(sd or prior.sd)


def open_text(corpus: str, progress: Progress | None = None) -> Text:
    """Tokenizes the corpus if it is not in the cache. Raises if it is too small."""
    if Path(corpus).expanduser().exists():
        corpus = str(Path(corpus).expanduser().resolve())
    config = recipe(RECIPE, corpus=corpus, max_tokens=None, max_valid_tokens=None)
    least = _least_tokens(LENGTHS[0])
    characters = itertools.accumulate(len(piece.text) for _, piece in open_corpus(text_of(config)).stream())
    if not any(sofar >= least for sofar in characters):
        raise CoupledQKError(
            f"{corpus} is too small to compare on: it has less than {least:,} characters, expected {least:,} training tokens, "
            f"which is about {_BYTES * least / 1e6:.1f} MB of English text"
        )
    try:
        info = prepare(text_of(config), progress).info
    except SmallVocabularyError as error:
        raise CoupledQKError(
            f"{corpus} is too repetitive to compare on: it gives a vocabulary of only {error.found} tokens, expected "
            f"{config.model.vocab_size:,}; use text that repeats itself less"
        ) from None
    train, valid = info.splits["train"], info.splits["valid"]
    for split, there, needed in (("training", train, least), ("validation", valid, FEWEST_VALID)):
        if there.tokens < needed:
            times = f", which is {needed / there.tokens:.1f} times as much text" if there.tokens else ""
            raise CoupledQKError(
                f"{corpus} is too small to compare on: it has {there.tokens:,} {split} tokens ({there.bytes:,} bytes), "
                f"expected at least {needed:,}{times}"
            )
    return Text(corpus, task_name(config), info.hash, train.tokens, valid.tokens)


def choose(
    text: Text,
    variants: Sequence[str],
    minutes: float,
    jobs: int,
    out: Path,
    n_seeds: int = 0,
    began: float | None = None,
) -> Choice:
    """Chooses runs that fit the budget from the measured speed of each variant. The choice is stored in the folder, and the
    same arguments give the same choice again. The budget includes the time since `began`, in seconds of the monotonic
    clock."""
    began = time.monotonic() if began is None else began
    asked = {"text": text.hash, "variants": list(variants), "minutes": minutes, "jobs": jobs, "seeds": n_seeds}
    memory = out / "choice.json"
    known = read_sealed_json(memory, ADVICE) if memory.is_file() else {"asked": {}}
    if not isinstance(known.get("asked"), dict):
        raise FileError(f"{memory} is damaged (the arguments of the choice are missing): {ADVICE}")
    if known["asked"].get("text", text.hash) != text.hash:
        raise CoupledQKError(
            f"{out} holds a comparison on another text, or {text.name} has changed: choose another --out"
        )
    if known["asked"] == asked:
        try:
            return from_dict(Choice, known.get("choice"))
        except CoupledQKError as error:
            raise FileError(f"{memory} is damaged ({error}): {ADVICE}") from None
    speeds, mode = fastest(variants, minutes)
    timing = Timing(speeds, jobs, mode, time.monotonic() - began)
    choice = fit(text, timing, minutes, n_seeds)
    write_json(memory, {"asked": asked, "choice": asdict(choice)})
    return choice


def fastest(variants: Sequence[str], minutes: float) -> tuple[dict[str, tuple[float, ...]], Mode]:
    """The measured speed of each variant in the fastest mode, and that mode.

    Modes other than the default are tried if the budget is large enough: compiled models and, if the processor has
    instructions for it, compiled models in bfloat16.
    """
    found = {Mode(): measure_speeds(variants, Mode())}
    others = (Mode(True), Mode(True, "bf16")) if has_bfloat16() else (Mode(True),)
    for mode in others if minutes >= COMPILE_MINUTES else ():
        try:
            found[mode] = measure_speeds(variants, mode)
        except Exception:  # a missing or failing compiler raises many kinds of errors, and models train without it
            break
    best = min(found, key=lambda mode: Timing(found[mode], jobs=1).token_seconds)
    return found[best], best


def measure_speeds(variants: Sequence[str], mode: Mode) -> dict[str, tuple[float, ...]]:
    """Training tokens per second of each variant, in interleaved rounds."""
    configs = {name: recipe(RECIPE, name, compile=mode.compiled, precision=mode.precision) for name in variants}
    with status(f"measuring the training speed of models that are {mode}"):
        speeds = training_speeds(configs, ROUNDS, ROUND_STEPS)
    return {name: tuple(values) for name, values in speeds.items()}


@dataclass(frozen=True)
class Timing:
    """Cost of runs on this machine."""

    speeds: Mapping[str, Sequence[float]]
    """Training speed of each variant in tokens per second, one value per interleaved round."""
    jobs: int
    """Number of runs trained at a time."""
    mode: Mode = Mode()
    spent: float = 0.0
    """Seconds that the command has taken so far."""

    @property
    def token_seconds(self) -> float:
        """Seconds that one training token costs, averaged over the variants."""
        return fmean(1 / median(values) for values in self.speeds.values())

    def run_seconds(self, text: Text, steps: int) -> float:
        """The mean duration of a run. A token costs a third as much in evaluation as in training, and each run has one
        additional evaluation at the end."""
        work = steps * _STEP_TOKENS + (EVALUATIONS + 1) * _valid_tokens(text) / 3
        return MARGIN * work * self.token_seconds + PER_RUN

    def once_seconds(self) -> float:
        """The duration of everything that does not depend on the number of runs. Each process compiles each variant once."""
        return self.spent + STARTING + COMPILING * len(self.speeds) * self.mode.compiled + FINISHING

    def minutes(self, text: Text, steps: int, pairs: int) -> float:
        """The expected duration of the whole comparison."""
        rounds = math.ceil(pairs * len(self.speeds) / self.jobs)
        return (self.once_seconds() + rounds * self.run_seconds(text, steps)) / 60

    def pairs(self, text: Text, steps: int, minutes: float) -> int:
        """The number of pairs that fit into a budget."""
        rounds = int((60 * minutes - self.once_seconds()) / self.run_seconds(text, steps))
        return max(0, rounds) * self.jobs // len(self.speeds)


def fit(text: Text, timing: Timing, minutes: float, n_seeds: int = 0) -> Choice:
    """Chooses the longest runs of which enough pairs fit into the budget, or as many pairs of the shortest runs as fit.

    If the number of seeds is given, it chooses the longest runs of which this many pairs fit.
    """
    possible = [_choice(text, timing, steps, minutes, n_seeds) for steps in LENGTHS if _has_text(text, steps)]
    chosen = next((choice for choice in reversed(possible) if choice.pairs >= (n_seeds or ENOUGH_PAIRS)), possible[0])
    least = n_seeds or FEWEST_PAIRS
    if chosen.pairs < least or (not n_seeds and chosen.detectable > LARGEST_EFFECT):
        raise CoupledQKError(_too_short(text, timing, minutes, n_seeds, chosen))
    return chosen


def _choice(text: Text, timing: Timing, steps: int, minutes: float, n_seeds: int) -> Choice:
    fitting = timing.pairs(text, steps, minutes)
    pairs = min(fitting, n_seeds or MOST_PAIRS)
    tokens = min(text.train_tokens, steps * _STEP_TOKENS)
    speeds = {name: tuple(values) for name, values in timing.speeds.items()}
    expected = timing.minutes(text, steps, pairs)
    return Choice(steps, tokens, _valid_tokens(text), pairs, expected, speeds, timing.mode)


def _too_short(text: Text, timing: Timing, minutes: float, n_seeds: int, chosen: Choice) -> str:
    """The error message for a budget that is too small: what it can detect, and the budget that is needed."""
    least = n_seeds or next(n for n in itertools.count(FEWEST_PAIRS) if detectable_effect(n) <= LARGEST_EFFECT)
    could = f", which have 80% power to detect {100 * chosen.detectable:.1f}%" if chosen.pairs > 1 else ""
    expected = f"{n_seeds} pairs, one per seed" if n_seeds else f"{least} pairs, to detect {100 * LARGEST_EFFECT:g}%"
    needed = math.ceil(timing.minutes(text, LENGTHS[0], least))
    pairs = f"{chosen.pairs} pair{'s' * (chosen.pairs != 1)}"
    return (
        f"--minutes {minutes:g} allows {pairs} of runs on this machine{could}; expected at least {expected}: "
        f"give --minutes {needed}"
    )


def _valid_tokens(text: Text) -> int:
    return min(text.valid_tokens, text_of(RECIPES[RECIPE]).max_valid_tokens or text.valid_tokens)


def _least_tokens(steps: int) -> int:
    return steps * _STEP_TOKENS // MOST_PASSES


def _has_text(text: Text, steps: int) -> bool:
    return _least_tokens(steps) <= text.train_tokens


def settings_of(text: Text, choice: Choice) -> dict[str, Any]:
    """The settings that implement a choice, on top of the recipe."""
    every = choice.steps // EVALUATIONS
    return {
        "corpus": text.corpus,
        "max_tokens": choice.tokens,
        "max_valid_tokens": choice.valid_tokens,
        "steps": choice.steps,
        "warmup": choice.steps // 10,
        "eval_every": every,
        "save_every": every,
        "compile": choice.mode.compiled,
        "precision": choice.mode.precision,
    }
