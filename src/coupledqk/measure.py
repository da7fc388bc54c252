"""Measures of quality: what a task is judged by, and how its values are written. Torch-free.

A task's configuration names its measure (`config.task.measure`); progress, tables, charts, sweeps, reports and the laboratory
read it.
"""

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Measure:
    """One number per validation, or per run."""

    name: str
    key: str
    """Under which validation records and results hold it."""
    better: Literal["lower", "higher"]
    definition: str
    """One sentence without a full stop."""
    decimals: int = 4
    unit: str = ""
    """Empty for a number without one."""
    log_scale: bool = False
    """Whether charts have a logarithmic axis for it."""
    loss_unit: str = "nats per target"
    """The unit of the loss that is minimised in training."""
    companions: tuple["Measure", ...] = ()
    """Values shown beside it."""

    def show(self, value: float | None) -> str:
        """A value as text: `decimals` decimals, and at least four digits if it is 1 or more."""
        if value is None:
            return "–"
        if not math.isfinite(value):
            return "not finite"
        digits_before = math.floor(math.log10(max(abs(value), 1.0))) + 1
        return f"{value:,.{max(self.decimals, 4 - digits_before)}f}"


BITS_PER_BYTE = Measure(
    name="bits per byte",
    key="bits_per_byte",
    better="lower",
    definition="the loss of the same tokens in bits, divided by the bytes of their text, at the best validation; it does not "
    "depend on the tokenizer",
    loss_unit="nats per token",
)
PERPLEXITY = Measure(
    name="perplexity",
    key="perplexity",
    better="lower",
    definition="exp of the mean loss per token of the validation text, at the best validation",
    decimals=2,
    log_scale=True,
    loss_unit="nats per token",
    companions=(BITS_PER_BYTE,),
)
ACCURACY = Measure(
    name="accuracy",
    key="accuracy",
    better="higher",
    definition="share of correct answers, at the lowest validation loss",
    loss_unit="nats per answer",
    companions=(
        Measure(
            "loss", "loss", "lower", "mean cross-entropy per answer; the lowest is the best validation", unit="nats"
        ),
    ),
)
TOKENS_TO_REACH = Measure(
    name="tokens to reach standard's final loss",
    key="tokens_to_reach",
    better="lower",
    definition="training tokens seen when the validation loss first was at or below the final one of standard with the same "
    "seed, interpolated between evaluations",
    decimals=0,
    unit="tokens",
    log_scale=True,
)
MEASURES = {measure.key: measure for measure in (PERPLEXITY, BITS_PER_BYTE, ACCURACY, TOKENS_TO_REACH)}
"""By key; an experiment names one of them."""
