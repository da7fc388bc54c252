"""The cost of a run: FLOPs from its configuration, and time from finished runs or from a short measurement."""

import statistics
from dataclasses import replace
from pathlib import Path

from ..config import RunConfig, SentenceConfig
from ..costs import flops
from ..published import THROUGHPUT
from ..recipes import RECIPES
from ..run_folder import RunFolder, find_runs
from ..terminal import status

SIMILAR = 8
"""The speed of a run is taken from runs with the same scoring whose FLOPs per step differ by no more than this factor."""
PROBE_TOKENS, PROBE_FLOPS = 4_096, 1e11
"""A speed is measured with batches of about this many tokens, or fewer if they would take more FLOPs."""


def tokens(config: RunConfig) -> int:
    """Number of tokens seen in training."""
    return config.train.steps * config.train.batch_size * config.train.seq_len


def work(config: RunConfig) -> float:
    """FLOPs of all matrix products in training. A model that classifies sentences computes no logits for its tokens."""
    per_token = flops(config.model, config.train.seq_len)
    if isinstance(config.task, SentenceConfig):
        per_token = replace(per_token, logits=0)
    return tokens(config) * per_token.training


class Speeds:
    """Training speed on this machine in FLOPs per second, from finished runs and from measurements."""

    def __init__(self, finished: list[RunFolder]) -> None:
        self.measured = [(run.config, work(run.config) / run.result["seconds"]) for run in finished]

    @classmethod
    def of(cls, folder: Path) -> "Speeds":
        """The speeds of the finished runs in a folder, except those that need a plugin that is not loaded."""
        runs = find_runs(folder) if folder.is_dir() else []
        return cls([run for run in runs if run.result.get("seconds") and run.missing_plugin is None])

    def hours(self, config: RunConfig) -> float | None:
        """The expected duration from finished runs of the same model and training or, if there are none, of similar size;
        None if there is neither."""
        alike = [rate for other, rate in self.measured if (other.model, other.train) == (config.model, config.train)]
        alike = alike or [rate for other, rate in self.measured if _similar(other, config)]
        return work(config) / statistics.median(alike) / 3600 if alike else None

    def measure(self, config: RunConfig) -> float:
        """The expected duration in hours. Takes a few training steps if no similar run is known."""
        if self.hours(config) is None:
            from .speed import training_speeds

            per_token, length = flops(config.model, config.train.seq_len).training, config.train.seq_len
            rows = max(1, min(PROBE_TOKENS, int(PROBE_FLOPS / per_token)) // length)
            rounds = 3 if rows * length * per_token < PROBE_FLOPS else 1
            with status("measuring the training speed"):
                speed = statistics.median(training_speeds({"": config}, rounds, steps=1, max_rows=rows)[""])
            self.measured.append((config, speed * per_token))
        hours = self.hours(config)
        assert hours is not None
        return hours


def paper_hours(config: RunConfig) -> float:
    """The expected duration on the paper's GPU, from the published speed of its 60M model."""
    paper = RECIPES["wikitext-103"]
    rate = THROUGHPUT["standard"]["training"] * flops(paper.model, paper.train.seq_len).training
    return work(config) / rate / 3600


def _similar(one: RunConfig, other: RunConfig) -> bool:
    """Whether two runs train at about the same number of FLOPs per second. The kind of scoring matters: differential attention
    has many small operations that FLOPs do not count."""
    small, large = sorted(work(config) / config.train.steps for config in (one, other))
    return large <= SIMILAR * small and one.model.attention.scoring == other.model.attention.scoring
