"""Timing that a busy machine cannot tilt: contenders take turns, and only what one round has timed is compared."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

Name = TypeVar("Name")


@dataclass(frozen=True)
class Spread:
    """A median with its quartiles."""

    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(median, low, high)


def take_turns(
    runs: Mapping[Name, Callable[[], float]], rounds: int, tell: Callable[[str], None] = lambda text: None
) -> dict[Name, list[float]]:
    """The seconds of every run in every round. Each round times each run once, in an order that rotates; the first round
    warms up and does not count. `tell` hears how far it is."""
    names = list(runs)
    times: dict[Name, list[float]] = {name: [] for name in names}
    for number in range(rounds + 1):
        tell(f"round {number} of {rounds}" if number else "warming up")
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            seconds = runs[name]()
            if number:
                times[name].append(seconds)
    return times


@dataclass(frozen=True)
class Speed:
    tokens_per_second: float
    """The median over the rounds."""
    relative: Spread
    """Of the ratios to the baseline's speed in the same round."""
    seconds: list[float]
    """Of every round."""


def speeds(times: Mapping[Name, list[float]], baseline: Name, tokens: int) -> dict[Name, Speed]:
    return {
        name: Speed(
            tokens_per_second=tokens / statistics.median(seconds),
            relative=spread([base / own for base, own in zip(times[baseline], seconds, strict=True)]),
            seconds=seconds,
        )
        for name, seconds in times.items()
    }


def seconds_of(run: Callable[[], object], device: torch.device) -> float:
    """Until the device has finished, too."""
    _wait_for(device)
    start = time.perf_counter()
    run()
    _wait_for(device)
    return time.perf_counter() - start


def _wait_for(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
