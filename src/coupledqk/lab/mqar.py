"""Associative recall as an experiment: attention variants, training lengths and learning rates. Torch-free."""

from collections.abc import Sequence
from typing import Any, Literal

from ..errors import CoupledQKError
from ..measure import ACCURACY
from ..outcome import Claim
from ..recipes import RECIPES
from .experiment import Experiment, Grid, Scale

RECIPE = {"mini": "mqar-mini", "paper": "mqar"}
STEPS = {"mini": (1_500,), "paper": (10_000, 20_000)}
LEARNING_RATES = {"mini": (5e-4, 1e-3), "paper": (3e-4, 1e-3, 3e-3)}
Level = Literal["easy", "medium", "hard"]
"""The paper's levels of difficulty: 4 pairs in 64 tokens, 8 pairs in 128, and 16 pairs in 256."""


def recall_experiment(
    variants: Sequence[str] = ("standard", "hamiltonian"),
    scale: Literal["mini", "paper"] = "mini",
    level: Level | None = None,
    pairs: int | None = None,
    length: int | None = None,
    steps: Sequence[int] = (),
    lrs: Sequence[float] = (),
    seeds: Sequence[int] = (0, 1, 2),
    **settings: Any,
) -> Experiment:
    """An experiment that trains every variant on MQAR with the same training lengths and learning rates.

    Runs with the same seed have the same data and the same initial values of shared weights. The first variant is the baseline.
    With at least two seeds, each other variant is tested against it at every training length and learning rate.
    """
    if level is not None and (pairs is not None or length is not None):
        raise CoupledQKError(f"--level {level} sets the pairs and the length: leave out --pairs and --length")
    from ..data.mqar import LEVELS

    base = RECIPES[RECIPE[scale]]
    if level is not None:
        pairs, length = LEVELS[level]
        settings = {"vocab_size": RECIPES["mqar"].model.vocab_size, **settings}
    length = base.train.seq_len if length is None else length
    axes = {
        "steps": {f"{n:,}": {"steps": n, "warmup": min(n, base.train.warmup)} for n in steps or STEPS[scale]},
        "lr": {f"{lr:g}": {"lr": lr} for lr in sorted(set(lrs or LEARNING_RATES[scale]))},
    }
    grid = Grid(tuple(dict.fromkeys(variants)), "{variant}, {steps} steps, lr {lr}", axes)
    recall = Scale(
        metric=ACCURACY,
        grid=(grid,),
        recipe=RECIPE[scale],
        seeds=tuple(dict.fromkeys(seeds)),
        settings={
            "seq_len": length,
            "n_positions": max(length, base.model.n_positions),
            **({} if pairs is None else {"n_pairs": pairs}),
            **settings,
        },
        claims=_claims(grid) if len(set(seeds)) > 1 else (),
    )
    caption = (
        "Multi-query associative recall: the share of keys whose value is recalled, at the lowest validation loss."
    )
    title, source, command = "Associative recall (MQAR)", "your own settings", "coupledqk mqar"
    return Experiment("recall", title, source, caption, {scale: recall}, command=command)


def _claims(grid: Grid) -> tuple[Claim, ...]:
    """The claims about each variant against the first one, at equal training length and learning rate. The first claim is the
    primary one."""
    baseline, *others = grid.variant
    pairs = [
        [grid.label.format(variant=name, steps=steps, lr=lr) for name in (variant, baseline)]
        for variant in others
        for steps in grid.axes["steps"]
        for lr in grid.axes["lr"]
    ]
    return tuple(
        Claim(f"{ours} recalls better than {theirs}", "higher", ours, theirs, primary=i == 0)
        for i, (ours, theirs) in enumerate(pairs)
    )
