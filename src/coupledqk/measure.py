"""Measures of quality, such as perplexity and accuracy, and how their values are formatted. Torch-free.

The measure of a task is `config.task.measure`. Progress bars, tables, charts, sweeps, reports and the laboratory use it.
"""

import math
from dataclasses import dataclass
from typing import Literal

from .schema import require_range


@dataclass(frozen=True)
class Measure:
    """A number that is measured at each validation or once per run."""

    name: str
    key: str
    """Key of the value in validation records and results."""
    better: Literal["lower", "higher"]
    definition: str
    """The definition as one sentence without a full stop."""
    decimals: int = 4
    unit: str = ""
    """The unit of the value; empty if it has none."""
    log_scale: bool = False
    """Whether charts use a logarithmic axis."""
    loss_unit: str = "nats per target"
    """The unit of the training loss."""
    companions: tuple["Measure", ...] = ()
    """Other measures that are shown beside this one."""

    def __post_init__(self) -> None:
        require_range(self, 0, 15, "decimals")

    def show(self, value: float | None) -> str:
        """Formats a value with `decimals` decimals, and with at least four digits if it is 1 or more."""
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
"""The measures that an experiment can use as its metric, by key."""
