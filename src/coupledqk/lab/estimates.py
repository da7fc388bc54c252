"""What cells will cost: arithmetic from the configuration, hours from runs that are finished."""

import statistics
from pathlib import Path

from ..config import RunConfig
from ..costs import flops
from ..published import THROUGHPUT
from ..recipes import RECIPES
from ..run_folder import RunFolder, find_runs

SIMILAR = 8
"""Runs whose steps differ in work by no more than this factor tell each other's speed."""


def tokens(config: RunConfig) -> int:
    """That training sees."""
    return config.train.steps * config.train.batch_size * config.train.seq_len


def work(config: RunConfig) -> float:
    """Floating-point operations of the training's matrix products."""
    return tokens(config) * flops(config.model, config.train.seq_len).training


class Speeds:
    """How long runs take, judged by finished ones."""

    def __init__(self, finished: list[RunFolder]) -> None:
        self.measured = [(run.config, work(run.config) / run.result["seconds"]) for run in finished]

    @classmethod
    def of(cls, folder: Path) -> "Speeds":
        runs = find_runs(folder) if folder.is_dir() else []
        return cls([run for run in runs if run.result.get("seconds")])

    def hours(self, config: RunConfig) -> float | None:
        """By runs of this very model if there are some, else of a similar size; None if there is neither."""
        alike = [rate for other, rate in self.measured if (other.model, other.train) == (config.model, config.train)]
        alike = alike or [rate for other, rate in self.measured if _similar(other, config)]
        return work(config) / statistics.median(alike) / 3600 if alike else None


def paper_hours(config: RunConfig) -> float:
    """On the paper's GPU, by the speed of its 60M model there."""
    paper = RECIPES["wikitext-103"]
    rate = THROUGHPUT["standard"]["training"] * flops(paper.model, paper.train.seq_len).training
    return work(config) / rate / 3600


def _similar(one: RunConfig, other: RunConfig) -> bool:
    small, large = sorted(work(config) / config.train.steps for config in (one, other))
    return large <= SIMILAR * small
