"""Runs: training a run and opening a trained one."""

from .run import Run
from .training import train, train_run

__all__ = ["Run", "train", "train_run"]
