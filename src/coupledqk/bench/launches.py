"""Independent process launches: times the same contenders in fresh processes until the intervals are narrow or time runs out.

Effects that are fixed for the lifetime of a process, such as its memory layout, shift all of its rounds alike. Rounds of one
process therefore agree more closely than two runs of a benchmark. Launches alternate the order of the contenders.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TypeVar

from ..errors import CoupledQKError
from ..plugins import load_plugin
from ..registry import plugin_of
from ..schema import from_dict, to_dict
from .decode import time_decoding
from .orders import Launch, Order
from .records import Interval
from .throughput import time_passes
from .timing import OnMessage, speeds_over_launches

FEWEST = 5
"""Smallest number of launches with `--until`. An interval from fewer launches has a confidence below 90%."""
MINUTES = 10.0
"""Default time limit with `--until`."""

Found = TypeVar("Found")


@dataclass(frozen=True)
class Repetition:
    """Determines how many processes are launched."""

    launches: int | None = None
    until: float | None = None
    """Launching stops when the widest interval is at most this wide."""
    minutes: float | None = None

    @property
    def fewest(self) -> int:
        return self.launches or 1 if self.until is None else max(self.launches or 0, FEWEST)

    @property
    def limit(self) -> float | None:
        return MINUTES if self.minutes is None and self.until is not None else self.minutes


def launch_all(order: Order, repetition: Repetition, on_message: OnMessage) -> tuple[list[Launch], tuple[str, ...]]:
    """Launches processes one after the other.

    Returns the launches, and notes on contenders that were left out and limits that were not reached.
    """
    left_out: dict[int, str] = {}
    with tempfile.TemporaryDirectory(
        prefix="coupledqk-bench-"
    ) as caches:  # the first launch compiles, the others reuse its cache

        def one(number: int) -> Launch:
            places = tuple(sorted(left_out))
            each = replace(order, check=number == 0, backwards=number % 2 == 1, left_out=places)
            launch = launch_process(each, caches, lambda text: on_message(f"launch {number + 1}: {text}"))
            for place, reason in launch.failed.items():
                left_out[place] = f"{order.contenders[place].name} cannot be compiled and was left out ({reason})"
                on_message(left_out[place])
            if order.baseline in left_out:
                raise CoupledQKError(
                    f"{left_out[order.baseline]}: there is no baseline to compare with; omit --compile"
                )
            return launch

        def enough(found: Sequence[Launch]) -> bool:
            widest = max((each.width for each in intervals(order, found).values()), default=0.0)
            return repetition.until is None or widest <= repetition.until

        found = repeat(one, enough, repetition.fewest, repetition.limit)
    return found, (*left_out.values(), *shortfalls(intervals(order, found), len(found), repetition))


def repeat(
    one: Callable[[int], Found],
    enough: Callable[[Sequence[Found]], bool],
    fewest: int,
    minutes: float | None,
    clock: Callable[[], float] = time.monotonic,
) -> list[Found]:
    """Calls `one` with 0, 1, 2 ... at least `fewest` times and until `enough` returns true.

    Stops earlier if the time limit has passed, or if another call as long as the last one would exceed it. The duration of the
    first call is ignored, since it includes checks and compilation.
    """
    start = clock()
    found: list[Found] = []
    while True:
        begun = clock()
        found.append(one(len(found)))
        now = clock()
        if len(found) >= fewest and enough(found):
            return found
        expected = now - begun if len(found) > 1 else 0.0
        if minutes is not None and now - start + expected > 60 * minutes:
            return found


def intervals(order: Order, launches: Sequence[Launch]) -> dict[str, Interval]:
    """The interval of each contender's speed relative to the baseline, by the contender's label."""
    found = speeds_over_launches([launch.seconds[order.judged] for launch in launches], order.baseline, order.tokens)
    spread = {
        order.contenders[place].label: speed.over_launches for place, speed in found.items() if place != order.baseline
    }
    return {label: interval for label, interval in spread.items() if interval is not None}


def shortfalls(found: Mapping[str, Interval], launches: int, repetition: Repetition) -> list[str]:
    """A one-line note if the time limit prevented the requested number of launches or width of intervals."""
    if launches < repetition.fewest and repetition.until is None:
        return [f"only {launches} of {repetition.fewest} launches were made within --minutes {repetition.limit:g}"]
    if repetition.until is None or not found:
        return []
    label, widest = max(found.items(), key=lambda item: item[1].width)
    if launches >= repetition.fewest and widest.width <= repetition.until:
        return []
    return [
        f"--until {repetition.until:g} was not reached within --minutes {repetition.limit:g} ({launches} launches): the "
        f"interval of {label} is {widest.low:.3f}–{widest.high:.3f}; allow more minutes, or use a quieter machine"
    ]


def launch_here(order: Order, on_message: OnMessage = lambda text: None) -> Launch:
    """Times the contenders in this process."""
    return (time_passes if order.new_tokens is None else time_decoding)(order, on_message)


def launch_process(order: Order, caches: str, on_message: OnMessage) -> Launch:
    """Times the contenders in a new process with threads bound to cores."""
    attentions = [contender.config.attention for contender in order.contenders]
    plugins = {plugin_of(attention.dynamics.method, attention.scoring.kind) for attention in attentions}
    text = json.dumps({"plugins": sorted(plugin.path for plugin in plugins if plugin), "order": to_dict(order)})
    environment = os.environ | environment_of(order, caches)
    command = [sys.executable, "-m", "coupledqk.bench.launches"]
    with tempfile.TemporaryFile("w+") as errors, tempfile.TemporaryFile("w+") as given:
        given.write(text)
        given.seek(0)
        with subprocess.Popen(
            command, stdin=given, stdout=subprocess.PIPE, stderr=errors, env=environment, text=True
        ) as process:
            assert process.stdout is not None
            answer = {}
            for line in process.stdout:
                answer = json.loads(line) if line.startswith("{") else answer
                if "message" in answer:
                    on_message(answer["message"])
        errors.seek(0)
        said = errors.read().strip().splitlines()
    if "launch" in answer:
        return from_dict(Launch, answer["launch"])
    if "error" in answer:
        raise CoupledQKError(answer["error"])
    reason = said[-1] if said else f"killed by signal {-process.returncode}"
    raise CoupledQKError(
        f"a launch failed ({reason}): if the models do not fit into memory, time fewer or smaller models"
    )


def environment_of(order: Order, caches: str) -> dict[str, str]:
    """Environment of a launch: one thread bound to each core.

    With torch.compile threads are not bound, since the compiler's worker processes would inherit the binding to one core.
    """
    compiled = any(contender.compiled for contender in order.contenders)
    binding = {} if compiled else {"OMP_PROC_BIND": "close", "OMP_PLACES": "cores"}
    return {"OMP_NUM_THREADS": str(order.setup.threads), "TORCHINDUCTOR_CACHE_DIR": caches, **binding}


def main() -> None:
    """Reads an order from standard input; writes progress messages and the launch as lines of JSON."""
    given = json.load(sys.stdin)

    def write(**values: object) -> None:
        print(json.dumps(values), flush=True)

    try:
        for plugin in given["plugins"]:
            load_plugin(plugin)
        write(launch=asdict(launch_here(from_dict(Order, given["order"]), lambda text: write(message=text))))
    except CoupledQKError as error:
        write(error=str(error))


if __name__ == "__main__":
    main()
