"""A run as it is at this moment, finished or not."""

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
    """Everything a report needs of a run, read once."""

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
        """n-gram models of the run's text; none for other tasks and for unfinished runs."""
        return read_baselines(self.result)

    @property
    def position_losses(self) -> tuple[PositionLoss, ...]:
        """The loss against the context; none for other tasks and for unfinished runs."""
        return read_position_losses(self.result)

    @property
    def best(self) -> Record | None:
        """The validation of lowest loss so far; a loss that is not a number is the worst."""
        return min(self.valid, key=lambda record: (math.isnan(record["loss"]), record["loss"]), default=None)

    @property
    def latest(self) -> Record | None:
        """The newest validation: the final one if the run is finished."""
        return self.valid[-1] if self.valid else None

    @property
    def tokens_per_second(self) -> float | None:
        """Of the whole run if it is finished, else the newest measurement."""
        measured = [self.result.get("tokens_per_second"), *(t["tokens_per_second"] for t in reversed(self.timings))]
        return next((speed for speed in measured if speed), None)
