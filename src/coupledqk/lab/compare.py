"""Does coupling help on one's own text? Standard and coupled attention, seed by seed, within a time budget.

The model is the mini recipe's. What the budget decides is how long it trains, and on how much of the text: always four passes,
as in the paper's proportions.
"""

import itertools
import json
import math
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..config import LMConfig, text_of
from ..data.corpora import open_corpus
from ..data.shards import Progress, prepare
from ..errors import CoupledQKError
from ..files import write_atomic
from ..measure import PERPLEXITY
from ..outcome import Claim, Outcome, write
from ..recipes import RECIPES, recipe
from ..run_folder import task_name
from ..schema import require
from .answer import answer
from .cells import Plan
from .coherence import coherence
from .experiment import Experiment, Grid, Scale
from .outcomes import outcome as found_so_far

COUPLED = ("standard", "euler")
OTHERS = ("hamiltonian", "diff", "mlp_only", "query_residual", "key_residual", "kick", "drift", "linear", "shared_mlp")
"""What else may be coupled, and what helps without being coupled."""
SEEDS = (0, 1, 2, 3, 4)
PASSES = 4
LENGTHS = (152, 216, 304, 432, 608, 864, 1216, 1728, 2432)
"""Steps to choose from, a quarter of the recipe's to four times as many: few enough that a budget gives the same ones again."""
FEWEST_VALID = 4_096
PROBE_STEPS = 16
OVERHEAD, MARGIN = 60.0, 1.25
"""Seconds for all that is not training, and how much slower training may be than it was when measured."""
EVALUATIONS, EVALUATION = 8, 1 / 3
"""In a run, and what a token costs in one, against training."""
SCALE = "mini"

_MINI = RECIPES["mini"]
_STEP_TOKENS = _MINI.train.batch_size * _MINI.train.seq_len


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
    """How long each run trains, and on how much text."""

    steps: int
    tokens: int
    valid_tokens: int
    minutes: float
    """That all runs are expected to take."""


def open_text(corpus: str, progress: Progress | None = None) -> Text:
    """Tokenizes the corpus, unless that was done before, and refuses one that is too small."""
    if Path(corpus).expanduser().exists():
        corpus = str(Path(corpus).expanduser().resolve())
    config = recipe("mini", corpus=corpus, max_tokens=None, max_valid_tokens=None)
    least = _tokens(LENGTHS[0])
    characters = itertools.accumulate(len(piece.text) for _, piece in open_corpus(text_of(config)).stream())
    if not any(sofar >= least for sofar in characters):
        raise CoupledQKError(
            f"{corpus} is too small to compare on: it has less than {least:,} characters; use more text"
        )
    info = prepare(text_of(config), progress).info
    train, valid = info.splits["train"], info.splits["valid"]
    for split, there, needed in (("training", train, least), ("validation", valid, FEWEST_VALID)):
        if there.tokens < needed:
            raise CoupledQKError(
                f"{corpus} is too small to compare on: it has {there.tokens:,} {split} tokens ({there.bytes:,} bytes), "
                f"expected {needed:,} at least; use more text"
            )
    return Text(corpus, task_name(config), info.hash, train.tokens, valid.tokens)


def choose(text: Text, variants: Sequence[str], minutes: float, jobs: int, out: Path) -> Choice:
    """What fits the budget, after a few steps of each variant; as it was chosen before, if this was asked before."""
    require(0 < minutes < math.inf, "minutes", minutes, "a time above 0")
    asked = {"text": text.hash, "variants": list(variants), "minutes": minutes}
    memory = out / "choice.json"
    known = json.loads(memory.read_text()) if memory.is_file() else {"asked": {}}
    if known["asked"].get("text", text.hash) != text.hash:
        raise CoupledQKError(
            f"{out} holds a comparison on another text, or {text.name} has changed: choose another --out"
        )
    if known["asked"] == asked:
        return Choice(**known["choice"])
    choice = fit(text, measure_speeds(text, variants), minutes, jobs)
    write_atomic(memory, json.dumps({"asked": asked, "choice": asdict(choice)}, indent=1) + "\n")
    return choice


def measure_speeds(text: Text, variants: Sequence[str]) -> dict[str, float]:
    """Tokens per second of each variant, in training."""
    from ..runs.training import train_run

    settings = settings_of(text, Choice(PROBE_STEPS, _tokens(LENGTHS[0]), FEWEST_VALID, 0)) | {
        "eval_every": PROBE_STEPS,
        "log_every": 2,
    }
    speeds = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in variants:
            run = train_run(recipe("mini", name, **settings), Path(folder, name))
            speeds[name] = run.result["tokens_per_second"]
    return speeds


def fit(text: Text, speeds: dict[str, float], minutes: float, jobs: int) -> Choice:
    """The longest of LENGTHS for which the text has enough tokens and the budget enough minutes."""
    valid_tokens = min(text.valid_tokens, text_of(_MINI).max_valid_tokens or text.valid_tokens)
    choices = [
        Choice(steps, _tokens(steps), valid_tokens, _minutes(steps, valid_tokens, speeds, jobs)) for steps in LENGTHS
    ]
    fitting = [choice for choice in choices if choice.tokens <= text.train_tokens and choice.minutes <= minutes]
    if not fitting:
        raise CoupledQKError(
            f"{minutes:g} minutes are too few: {len(speeds) * len(SEEDS)} runs of {LENGTHS[0]} steps, the fewest that mean "
            f"something, take about {choices[0].minutes:.0f} here; give --minutes {math.ceil(choices[0].minutes)}"
        )
    return fitting[-1]


def _minutes(steps: int, valid_tokens: int, speeds: dict[str, float], jobs: int) -> float:
    work = steps * _STEP_TOKENS + EVALUATION * EVALUATIONS * valid_tokens
    seconds = sum(len(SEEDS) * work / speed for speed in speeds.values())
    return (OVERHEAD + MARGIN * seconds / jobs) / 60


def _tokens(steps: int) -> int:
    return steps * _STEP_TOKENS // PASSES


def settings_of(text: Text, choice: Choice) -> dict[str, Any]:
    """On top of the mini recipe."""
    every = max(1, choice.steps // EVALUATIONS)
    return {
        "corpus": text.corpus,
        "max_tokens": choice.tokens,
        "max_valid_tokens": choice.valid_tokens,
        "steps": choice.steps,
        "warmup": choice.steps // 15,
        "eval_every": every,
        "save_every": every,
    }


def comparison(text: Text, choice: Choice, variants: Sequence[str]) -> Experiment:
    """The experiment: each variant against standard, euler first of all."""
    claims = tuple(
        Claim(
            f"{name} has lower perplexity than standard on {text.name}",
            "lower",
            name,
            "standard",
            primary=name == "euler",
        )
        for name in variants
        if name != "standard"
    )
    caption = (
        f"Each attention was trained {len(SEEDS)} times for {choice.steps:,} steps: {PASSES} passes over the first "
        f"{choice.tokens:,} of {text.train_tokens:,} training tokens, validated on {choice.valid_tokens:,}. A seed gives all "
        "of them the same initial weights and the same order of the text. The models are small: larger ones may differ."
    )
    scale = Scale(
        metric=PERPLEXITY,
        grid=(Grid(tuple(variants)),),
        recipe="mini",
        seeds=SEEDS,
        settings=settings_of(text, choice),
        claims=claims,
    )
    return Experiment("compare", f"Does coupling help on {text.name}?", "your own text", caption, {SCALE: scale})


def conclude(plan: Plan, text: Text, command: str) -> Outcome:
    """What came out, with the answer in words and the corpus' coherence, into the plan's outcome file."""
    found = found_so_far(plan)
    config = {**found.config, "task": {**found.config["task"], "corpus": text.name}}
    measured, why_not = _coherence(plan, text)
    words = answer(found, text.name, measured, why_not)
    found = replace(found, command=command, config=config, answer=words, coherence=measured)
    write(found, plan.outcome)
    return found


def _coherence(plan: Plan, text: Text) -> tuple[dict[str, dict[str, Any]], str]:
    """Of the text by its name, measured once; or none, and why."""
    memory = plan.out / "coherence.json"
    if memory.is_file() and (known := json.loads(memory.read_text()))["text"] == text.hash:
        return {text.name: known["coherence"]}, ""
    try:
        measured = asdict(coherence(piece.text for _, piece in open_corpus(LMConfig(corpus=text.corpus)).stream()))
    except CoupledQKError as error:
        return {}, str(error)
    write_atomic(memory, json.dumps({"text": text.hash, "coherence": measured}, indent=1) + "\n")
    return {text.name: measured}, ""
