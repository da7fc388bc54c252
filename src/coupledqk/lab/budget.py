"""What a time budget allows `compare` to do: how long runs train, on how much text, and for how many pairs of seeds."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from ..config import text_of
from ..data.corpora import open_corpus
from ..data.shards import Progress, prepare
from ..errors import CoupledQKError
from ..files import FileError
from ..recipes import RECIPES, recipe
from ..run_folder import task_name
from ..schema import from_dict, require
from ..sealed import read_sealed_json, write_json
from ..statistics import SequentialTest, compare_prior
from .speed import training_speeds

RECIPE = "mini-modern"
LENGTHS = (500, 1_000, 2_000, 4_000)
"""Training steps to choose from; the last is the recipe's own."""
FEWEST_PAIRS, ENOUGH_PAIRS = 4, 8
"""The first test is made after so many pairs, and runs are made longer only if so many pairs still fit."""
LARGEST_EFFECT = 0.05
"""A budget that cannot detect an effect of this size is refused."""
MOST_PASSES = 4
"""Over the training text."""
FEWEST_VALID = 4_096
EVALUATIONS = 4
ADVICE = "move it away; the speed is then measured again"
"""If the file of the choice is damaged."""
ROUNDS, ROUND_STEPS = 7, 4
"""Interleaved rounds in which the speed of each attention is measured, and the training steps in each."""
OVERHEAD, MARGIN = 20.0, 1.1
"""Seconds for starting and for n-gram baselines; and how much slower runs are that share the machine with others."""

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
class Choice:
    """What fits into a budget."""

    steps: int
    """Of each run."""
    tokens: int
    """In the sample of the training text."""
    valid_tokens: int
    pairs: int
    """Seeds; each is a run of every attention."""
    minutes: float
    """Expected duration of all runs."""
    speeds: dict[str, tuple[float, ...]]
    """Training tokens per second of each attention, one value per interleaved round."""

    @property
    def passes(self) -> str:
        """Over the sample, in words."""
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
    """With 80% power by the sequential test, for a standard deviation of the pairs' differences or the one to expect."""
    if pairs < 2:
        return math.inf
    prior = compare_prior()
    return SequentialTest(pairs, min(FEWEST_PAIRS, pairs), prior_df=prior.df).detectable_effect(sd or prior.sd)


def open_text(corpus: str, progress: Progress | None = None) -> Text:
    """Tokenizes the corpus, unless that was done before, and refuses one that is too small."""
    if Path(corpus).expanduser().exists():
        corpus = str(Path(corpus).expanduser().resolve())
    config = recipe(RECIPE, corpus=corpus, max_tokens=None, max_valid_tokens=None)
    least = _least_tokens(LENGTHS[0])
    characters = itertools.accumulate(len(piece.text) for _, piece in open_corpus(text_of(config)).stream())
    if not any(sofar >= least for sofar in characters):
        raise CoupledQKError(
            f"{corpus} is too small to compare on: it has less than {least:,} characters, and {least:,} training tokens are "
            "needed; use more text"
        )
    info = prepare(text_of(config), progress).info
    train, valid = info.splits["train"], info.splits["valid"]
    for split, there, needed in (("training", train, least), ("validation", valid, FEWEST_VALID)):
        if there.tokens < needed:
            raise CoupledQKError(
                f"{corpus} is too small to compare on: it has {there.tokens:,} {split} tokens ({there.bytes:,} bytes), "
                f"expected {needed:,} at least, which is {needed / there.tokens:.1f} times as much text"
            )
    return Text(corpus, task_name(config), info.hash, train.tokens, valid.tokens)


def choose(text: Text, variants: Sequence[str], minutes: float, jobs: int, out: Path, n_seeds: int = 0) -> Choice:
    """What fits the budget, by the measured speed of each variant; the same as before if the same was asked before."""
    require(0 < minutes < math.inf, "minutes", minutes, "a time above 0")
    asked = {"text": text.hash, "variants": list(variants), "minutes": minutes, "jobs": jobs, "seeds": n_seeds}
    memory = out / "choice.json"
    known = read_sealed_json(memory, ADVICE) if memory.is_file() else {"asked": {}}
    if not isinstance(known.get("asked"), dict):
        raise FileError(f"{memory} is damaged (it does not say what was asked): {ADVICE}")
    if known["asked"].get("text", text.hash) != text.hash:
        raise CoupledQKError(
            f"{out} holds a comparison on another text, or {text.name} has changed: choose another --out"
        )
    if known["asked"] == asked:
        try:
            return from_dict(Choice, known.get("choice"))
        except CoupledQKError as error:
            raise FileError(f"{memory} is damaged ({error}): {ADVICE}") from None
    choice = fit(text, measure_speeds(variants), minutes, jobs, n_seeds)
    write_json(memory, {"asked": asked, "choice": asdict(choice)})
    return choice


def measure_speeds(variants: Sequence[str]) -> dict[str, tuple[float, ...]]:
    """Training tokens per second of each variant, in interleaved rounds."""
    speeds = training_speeds({name: recipe(RECIPE, name) for name in variants}, ROUNDS, ROUND_STEPS)
    return {name: tuple(values) for name, values in speeds.items()}


def fit(text: Text, speeds: Mapping[str, Sequence[float]], minutes: float, jobs: int, n_seeds: int = 0) -> Choice:
    """The longest runs of which enough pairs fit; or else the most pairs of the shortest runs.

    If the number of seeds is given, the longest runs of which as many fit.
    """
    possible = [_choice(text, speeds, steps, minutes, jobs, n_seeds) for steps in LENGTHS if _has_text(text, steps)]
    chosen = next((choice for choice in reversed(possible) if choice.pairs >= (n_seeds or ENOUGH_PAIRS)), possible[0])
    least = n_seeds or FEWEST_PAIRS
    if chosen.pairs < least or (not n_seeds and chosen.detectable > LARGEST_EFFECT):
        needed = math.ceil((OVERHEAD + least * _pair_seconds(text, speeds, LENGTHS[0], jobs)) / 60)
        could = f", which have 80% power to detect {100 * chosen.detectable:.1f}%" if chosen.pairs > 1 else ""
        raise CoupledQKError(
            f"--minutes {minutes:g} allows {chosen.pairs} pairs of runs on this machine{could}; expected at least {least} "
            f"pairs and {100 * LARGEST_EFFECT:g}% or less: give --minutes {needed}"
        )
    return chosen


def _choice(
    text: Text, speeds: Mapping[str, Sequence[float]], steps: int, minutes: float, jobs: int, n_seeds: int
) -> Choice:
    pair = _pair_seconds(text, speeds, steps, jobs)
    fitting = max(0, int((60 * minutes - OVERHEAD) / pair))
    pairs = min(fitting, n_seeds) if n_seeds else fitting
    tokens = min(text.train_tokens, steps * _STEP_TOKENS)
    kept = {name: tuple(values) for name, values in speeds.items()}
    return Choice(steps, tokens, _valid_tokens(text), pairs, (OVERHEAD + pairs * pair) / 60, kept)


def _pair_seconds(text: Text, speeds: Mapping[str, Sequence[float]], steps: int, jobs: int) -> float:
    """Of one seed with all attentions. A token costs a third in evaluation; at the end there is one evaluation more."""
    work = steps * _STEP_TOKENS + (EVALUATIONS + 1) * _valid_tokens(text) / 3
    return MARGIN * sum(work / median(values) for values in speeds.values()) / jobs


def _valid_tokens(text: Text) -> int:
    return min(text.valid_tokens, text_of(RECIPES[RECIPE]).max_valid_tokens or text.valid_tokens)


def _least_tokens(steps: int) -> int:
    return steps * _STEP_TOKENS // MOST_PASSES


def _has_text(text: Text, steps: int) -> bool:
    return _least_tokens(steps) <= text.train_tokens


def settings_of(text: Text, choice: Choice) -> dict[str, Any]:
    """On top of the recipe."""
    every = choice.steps // EVALUATIONS
    return {
        "corpus": text.corpus,
        "max_tokens": choice.tokens,
        "max_valid_tokens": choice.valid_tokens,
        "steps": choice.steps,
        "warmup": choice.steps // 10,
        "eval_every": every,
        "save_every": every,
    }
