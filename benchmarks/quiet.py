"""Runs all measurements of docs/performance.md within a time limit, the most important first, on a quiet machine.

Each part is a command. Its output is printed and appended to DATE-quiet.md in the results folder, next to the result files that
the command saves. Parts that are already in that file are not run again, so an interrupted suite can be resumed. A part that
does not fit into the remaining time is skipped, and the next shorter one is tried.

    python benchmarks/quiet.py --list
    python benchmarks/quiet.py --minutes 25
    python benchmarks/quiet.py --only train decode --save results/bench
"""

import argparse
import datetime
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
BENCH = ("-m", "coupledqk", "bench")
LAUNCHES = ("--launches", "5")


@dataclass(frozen=True)
class Part:
    name: str
    minutes: float
    """Expected duration on two quiet cores. The part is stopped after twice this time."""
    command: tuple[str, ...]
    """Arguments of the Python interpreter, run in the root of the repository; {save} is the folder for results."""

    @property
    def script(self) -> Path | None:
        """The script that the part runs; None if it is a command of the package."""
        return ROOT / self.command[0] if self.command[0].endswith(".py") else None


PARTS = (
    Part(
        "train", 7.5,
        (*BENCH, "--n-steps", "1", "3", "--variants", "euler", "hamiltonian", "diff", "--peers", "llama", "--training-only",
         *LAUNCHES, "--rounds", "2", "--minutes", "8", "--memory-batch", "0", "--save", "{save}"),
    ),
    Part(
        "decode", 3.5,
        (*BENCH, "--decode", "--int8", "--variants", "hamiltonian", "--peers", "llama", *LAUNCHES, "--rounds", "1",
         "--minutes", "4", "--save", "{save}"),
    ),
    Part(
        "compiled", 7.5,
        (*BENCH, "--compile", "--variants", "hamiltonian", "--peers", "llama", "--training-only", *LAUNCHES,
         "--rounds", "2", "--minutes", "8", "--save", "{save}"),
    ),
    Part("couple", 1.5, ("benchmarks/couple.py", "--rounds", "5")),
    Part("bound", 1.5, ("benchmarks/bound.py", "--save", "{save}")),
    Part("distributed", 2, ("benchmarks/distributed.py", "speed", "--save", "{save}")),
    Part(
        "engines", 3,
        ("benchmarks/engines.py", "--runs", "4", "--steps", "400", "--rounds", "3", "--save", "{save}"),
    ),
    Part(
        "peers", 3.5,
        (*BENCH, "--variants", "standard", "--peers", "x-transformers", "nanogpt", "--training-only", *LAUNCHES,
         "--rounds", "2", "--minutes", "4", "--memory-batch", "0", "--save", "{save}"),
    ),
    Part(
        "memory", 3,
        (*BENCH, "--variants", "euler", "hamiltonian", "diff", "--peers", "llama", "--training-only", "--rounds", "1",
         "--memory-batch", "8", "--save", "{save}"),
    ),
    Part("growth", 9, ("benchmarks/growth.py", "--save", "{save}")),
)  # fmt: skip
"""Parts in order of importance. Peak memory does not depend on the machine's load, so its part comes late with one round."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=25.0, help="time limit for all parts")
    parser.add_argument("--only", nargs="+", choices=[part.name for part in PARTS], help="parts to run")
    parser.add_argument(
        "--save", type=Path, default=Path("results/bench"), help="folder for results, relative to the root"
    )
    parser.add_argument("--log", type=Path, help="file for the output (default: SAVE/DATE-quiet.md)")
    parser.add_argument("--list", action="store_true", help="print the commands and their expected minutes")
    options = parser.parse_args()
    save = ROOT / options.save
    chosen = [part for part in PARTS if options.only is None or part.name in options.only]
    if options.list:
        for part in chosen:
            print(f"{part.name:>12}  {part.minutes:4g} min  {shown(part, options.save)}")
        return
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    run_all(chosen, options.minutes, options.save, options.log or save / f"{today}-quiet.md")


def run_all(
    parts: Sequence[Part], minutes: float, save: Path, log: Path, clock: Callable[[], float] = time.monotonic
) -> None:
    """Runs the parts that are not in the log yet, within the time limit."""
    end = clock() + 60 * minutes
    for part in parts:
        done = log.read_text("utf-8") if log.is_file() else ""
        left = (end - clock()) / 60
        if f"\n## {part.name}\n" in done:
            print(f"{part.name}: already in {log}")
        elif part.script is not None and not part.script.is_file():
            print(f"{part.name}: left out, {part.script.name} does not exist")
        elif part.minutes > left:
            print(f"{part.name}: left out, it takes about {part.minutes:g} minutes and {max(left, 0):.1f} remain")
        else:
            run(part, save, log)


def run(part: Part, save: Path, log: Path) -> None:
    """Runs a part, prints its output as it arrives, and appends it to the log if the part succeeds."""
    print(f"{part.name}: {shown(part, save)}", flush=True)
    start, lines = time.monotonic(), []
    command = [sys.executable, *(word.format(save=save) for word in part.command)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True) as process:
        stop = threading.Timer(120 * part.minutes, os.killpg, (process.pid, signal.SIGTERM))
        stop.start()
        assert process.stdout is not None
        try:
            for line in process.stdout:
                print(line, end="", flush=True)
                lines.append(line)
            code = process.wait()
        finally:
            stop.cancel()
            if process.poll() is None:  # interrupted
                os.killpg(process.pid, signal.SIGTERM)
    if code:
        print(f"{part.name}: failed with exit code {code}; it is not in the log", flush=True)
        return
    minutes = (time.monotonic() - start) / 60
    head = "" if log.is_file() else "# Measurements\n"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as file:
        file.write(
            f"{head}\n## {part.name}\n\n`{shown(part, save)}`, {minutes:.1f} minutes\n\n```\n{''.join(lines)}```\n"
        )


def shown(part: Part, save: Path) -> str:
    words = [word.format(save=save) for word in part.command]
    return " ".join(["python", *words]).replace("python -m coupledqk", "coupledqk")


if __name__ == "__main__":
    main()
