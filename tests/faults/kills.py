"""Kill chains: a run that is killed repeatedly at random times ends bit-identically.

`python kills.py FOLDER KILLS SEED` prints the outcome as JSON. This separate process loads torch once, trains
nothing itself and forks a child for each attempt, so that a kill costs a fraction of a second.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[1])]

from samples import Samples
from trials import Tally

from coupledqk.config import RunConfig
from coupledqk.runs import Run
from small_runs import run_to, tiny, trained_bits


def kill_chains(samples: Samples, kills: int, seed: int = 0) -> Tally:
    """Runs chains in a separate process until the given number of kills is reached."""
    command = [sys.executable, __file__, str(samples.folder), str(kills), str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600)
    if done.returncode:
        return Tally(failures=[f"kill chains ended with code {done.returncode}\n{done.stderr}"])
    found = json.loads(done.stdout.splitlines()[-1])
    tally = Tally(figures={"chains": found["chains"]}, failures=found["failures"])
    tally.ends.update(found["ends"])
    return tally


def main(folder: Path, kills: int, seed: int) -> None:
    config, draw = tiny(folder / "text.txt", threads=1, steps=40, save_every=3), random.Random(f"kills {seed}")
    start = time.monotonic()
    assert _attempt(config, folder / "whole", None) == 0
    duration = time.monotonic() - start
    whole, tally, delivered, chains = trained_bits(Run(folder / "whole")), Tally(), 0, 0
    while delivered < kills:
        path = folder / f"chain {chains}"
        chains += 1
        while delivered < kills or not Run(path).result:
            # early kills are more likely, since late ones make chains short
            wait = draw.uniform(0, duration) * draw.random() if delivered < kills else None
            code = _attempt(config, path, wait)
            if code == 0:
                break
            if code != -signal.SIGKILL:
                tally.count(f"kill {delivered} of chain {chains - 1}: exit code {code}", lambda: "traceback")
                break
            delivered += 1
            tally.ends["repaired"] += 1
        end = "without effect" if trained_bits(Run(path)) == whole else "lost"
        if end == "lost":
            tally.ends["repaired"] -= 1
            tally.count(f"chain {chains - 1} ended with other bits", lambda: "lost")
    print(json.dumps({"ends": tally.ends, "failures": tally.failures, "chains": chains}))


def _attempt(config: RunConfig, path: Path, wait: float | None) -> int:
    """Trains in a child that is killed after `wait` seconds, unless it has ended; returns its exit code."""
    child = os.fork()
    if child == 0:
        try:
            run_to(config, path)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    if wait is not None:
        time.sleep(wait)
        os.kill(child, signal.SIGKILL)  # the child was not waited for, so its process id is still valid
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    os.environ["COUPLEDQK_CACHE"] = str(Path(sys.argv[1]) / "cache")
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
