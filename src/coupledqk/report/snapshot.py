"""A snapshot of a run, finished or not."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..baselines import Baseline, PositionLoss, read_baselines, read_position_losses
from ..config import RunConfig
from ..errors import CoupledQKError
from ..run_folder import RunFolder

Record = dict[str, Any]


@dataclass(frozen=True)
class Snapshot:
    """All data of a run that a report needs, read once."""

    path: Path
    config: RunConfig
    info: Record
    train: list[Record]
    valid: list[Record]
    timings: list[Record]
    result: Record

    @classmethod
    def read(cls, path: Path) -> "Snapshot":
        run = RunFolder.open(path)
        info = run.info
        if not info:
            raise CoupledQKError(f"{path} is not a run that was started: it has no info.json")
        train, valid = run.metrics("train"), run.metrics("valid")
        if not train and not valid:
            raise CoupledQKError(f"{path} has no metrics yet: wait for its first log line, or leave it out")
        return cls(Path(path), run.config, info, train, valid, run.timings(), run.result)

    @property
    def baselines(self) -> tuple[Baseline, ...]:
        """n-gram models of the run's text; empty for other tasks and for unfinished runs."""
        return read_baselines(self.result)

    @property
    def position_losses(self) -> tuple[PositionLoss, ...]:
        """The loss by length of context; empty for other tasks and for unfinished runs."""
        return read_position_losses(self.result)

    @property
    def best(self) -> Record | None:
        """The validation with the lowest loss so far. A loss that is NaN counts as the highest."""
        return min(self.valid, key=lambda record: (math.isnan(record["loss"]), record["loss"]), default=None)

    @property
    def latest(self) -> Record | None:
        """The most recent validation, which is the final one if the run is finished."""
        return self.valid[-1] if self.valid else None

    @property
    def tokens_per_second(self) -> float | None:
        """Training speed of the whole run if it is finished, otherwise the most recent measurement."""
        measured = [self.result.get("tokens_per_second"), *(t["tokens_per_second"] for t in reversed(self.timings))]
        return next((speed for speed in measured if speed), None)


def has_metrics(run: RunFolder) -> bool:
    """Whether the run has been started and has logged a value."""
    return bool(run.info) and bool(run.metrics())
