"""Timing that is robust to a busy machine: contenders run in round-robin order, and speeds are compared within a round."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import torch

from .records import Interval, Quartiles, Speed

Name = TypeVar("Name")
OnMessage = Callable[[str], None]
"""Called with a progress message before each measurement."""


def round_robin(
    runs: Mapping[Name, Callable[[], float]], rounds: int, on_message: OnMessage = lambda text: None
) -> dict[Name, list[float]]:
    """Durations of every run in every round, in seconds.

    Each round times each run once, starting with a different run. A warm-up round precedes the others and is not counted.
    """
    names = list(runs)
    times: dict[Name, list[float]] = {name: [] for name in names}
    for number in range(rounds + 1):
        on_message(f"round {number} of {rounds}" if number else "warming up")
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            seconds = runs[name]()
            if number:
                times[name].append(seconds)
    return times


def speeds(times: Mapping[Name, Sequence[float]], baseline: Name, tokens: int) -> dict[Name, Speed]:
    """The speed of each run, where each timing processes `tokens` tokens."""
    return {
        name: Speed(
            tokens_per_second=tokens / statistics.median(seconds),
            relative=Quartiles.of([base / own for base, own in zip(times[baseline], seconds, strict=True)]),
            seconds=tuple(seconds),
        )
        for name, seconds in times.items()
    }


def speeds_over_launches(
    launches: Sequence[Mapping[Name, Sequence[float]]], baseline: Name, tokens: int, in_processes: bool = True
) -> dict[Name, Speed]:
    """Like `speeds`, over the rounds of several launches, with the median ratio of each launch and an interval over launches.

    Runs that are missing from a launch are omitted. Without `in_processes` there is one launch, in the calling process.
    """
    names = [name for name in launches[0] if all(name in times for times in launches)]
    found = speeds({name: [s for times in launches for s in times[name]] for name in names}, baseline, tokens)
    if not in_processes:
        return found
    ratios = [speeds(times, baseline, tokens) for times in launches]
    by_launch = {name: tuple(launch[name].relative.median for launch in ratios) for name in names}
    return {
        name: replace(found[name], by_launch=by_launch[name], over_launches=Interval.of(by_launch[name]))
        for name in names
    }


def seconds_of(run: Callable[[], object], device: torch.device) -> float:
    """Wall-clock duration of a call in seconds, including work queued on the device."""
    _synchronize(device)
    start = time.perf_counter()
    run()
    _synchronize(device)
    return time.perf_counter() - start


def _synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
