"""Long training: neither memory nor the time of a step grows with the number of steps."""

import os
import shutil
import time
from pathlib import Path

import numpy as np
from samples import Samples
from trials import Tally

from coupledqk.training.events import Event, Step
from small_runs import run_to, tiny

WINDOW = 100
MOST_MB = 0.5
"""Growth of the resident memory per 1,000 steps that counts as a leak; metrics and allocator noise are below."""
MOST_SLOWER = 0.02
"""Growth of the time of a step per 1,000 steps, relative to its median."""


def train_long(samples: Samples, steps: int) -> Tally:
    """Slopes of memory and step time over windows of steps, by least squares on the medians of windows after the first ten."""
    config = tiny(samples.folder / "text.txt", threads=1, steps=steps, eval_every=1000, save_every=1000, log_every=10)
    times: list[float] = []
    memory: list[float] = []
    last = time.perf_counter()

    def on_event(event: Event) -> None:
        nonlocal last
        now = time.perf_counter()
        if isinstance(event, Step):
            times.append(now - last)
            if event.step % WINDOW == 0:
                memory.append(_resident_mb())
        last = now

    folder = samples.folder / "long"
    run_to(config, folder, on_event=on_event)
    shutil.rmtree(folder)
    usual = np.median(np.array(times[: len(times) // WINDOW * WINDOW]).reshape(-1, WINDOW), axis=1)[10:]
    thousands = np.arange(len(usual)) * WINDOW / 1000
    mb = float(np.polyfit(thousands, np.array(memory)[10:], 1)[0])
    slower = float(np.polyfit(thousands, usual, 1)[0] / np.median(usual))
    tally = Tally(
        figures={
            "steps": steps,
            "memory, MB per 1,000 steps": round(mb, 4),
            "step time, change per 1,000 steps": f"{100 * slower:+.3f}%",
        }
    )
    tally.count(f"memory grows by {mb:.3f} MB per 1,000 steps", lambda: "without effect" if mb < MOST_MB else "lost")
    tally.count(
        f"steps become {slower:.1%} slower per 1,000", lambda: "without effect" if slower < MOST_SLOWER else "lost"
    )
    return tally


def _resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
