"""Peak memory of one forward and backward pass, measured in a separate process.

On a CPU it is the peak resident memory of the process minus the resident memory before the model was built: weights,
gradients, activations and the allocator's overhead. A pass of a tiny model loads all libraries beforehand. On CUDA it is
`torch.cuda.max_memory_allocated`.
"""

import json
import resource
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import torch

from ..errors import CoupledQKError
from ..plugins import load_plugin
from ..registry import plugin_of
from ..schema import from_dict, to_dict
from .contenders import Contender, Setup
from .records import Memory

MB = 1e6


def peak_memory(contender: Contender, setup: Setup) -> Memory:
    """Measures a contender in a new process."""
    attention = contender.config.attention
    plugin = plugin_of(attention.dynamics.method, attention.scoring.kind)
    order = json.dumps({"plugin": plugin and plugin.path, "contender": to_dict(contender), "setup": to_dict(setup)})
    command = [sys.executable, "-m", "coupledqk.bench.memory", order]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"killed by signal {-done.returncode}"])[-1]
        raise CoupledQKError(
            f"the memory of {contender.name} could not be measured ({reason}): if the model does not fit, use a smaller batch"
        )
    return Memory(**json.loads(done.stdout.splitlines()[-1]))


def measure_here(contender: Contender, setup: Setup) -> Memory:
    """Measures a contender in this process, which should not have run anything else."""
    torch.set_num_threads(setup.threads)
    one_pass(tiny(contender), replace(setup, batch=1, seq_len=8))  # loads libraries that are imported on first use
    on_cuda = torch.device(setup.device).type == "cuda"
    if on_cuda:
        torch.cuda.reset_peak_memory_stats(setup.device)
    before = 0.0 if on_cuda else resident("VmRSS")
    one_pass(contender, setup)
    peak = torch.cuda.max_memory_allocated(setup.device) if on_cuda else resident("VmHWM")
    return Memory((peak - before) / MB, before / MB, setup.batch)


def one_pass(contender: Contender, setup: Setup) -> None:
    model = contender.build(setup.device)
    tokens, targets = setup.random_batch(contender.config.vocab_size)
    with setup.autocast():
        loss = model(tokens, targets)
    loss.backward()


def tiny(contender: Contender) -> Contender:
    n_heads = contender.config.n_heads
    return replace(
        contender, config=replace(contender.config, d_model=16 * n_heads, n_layers=1, d_ff=16, vocab_size=32)
    )


def resident(field: str) -> float:
    """A memory field of /proc/self/status in bytes, or the peak from getrusage where that file does not exist.

    The peak of getrusage also includes the memory that the parent held when it started this process.
    """
    status = Path("/proc/self/status")
    if status.is_file():
        return int(status.read_text().split(f"{field}:")[1].split()[0]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


if __name__ == "__main__":
    order = json.loads(sys.argv[1])
    if order["plugin"] is not None:
        load_plugin(order["plugin"])
    print(json.dumps(asdict(measure_here(from_dict(Contender, order["contender"]), from_dict(Setup, order["setup"])))))
