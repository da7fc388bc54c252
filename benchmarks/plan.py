"""Compares the memory that `coupledqk plan` estimates with the peak resident memory of training steps on this CPU.

Each case runs in new processes with one thread each: one process, or two with DDP or FSDP2 over gloo. They take two short
steps, which create the optimizer's state and DDP's final buckets, and then a full step of the training loop with two
micro-batches. The measured value is the peak of a process' resident memory minus what was resident after steps of a very small
model, which load all libraries. With two processes it is the larger of the two values. The estimate is for the same step with
the CPU's kernels.

glibc keeps freed memory for later, in pieces that may be too small for large tensors. By default it is configured to return
the memory of every tensor at once, so that the measured peak is that of the tensors. With --keep-freed it keeps freed memory as
`coupledqk train` does (training/allocator.py).

    python benchmarks/plan.py --save results/bench
    python benchmarks/plan.py --presets nano --variants standard hamiltonian diff --strategies fsdp
"""

import argparse
import datetime
import itertools
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import torch
import torch.distributed as dist
from distributed import WORLD, Training

from coupledqk import preset
from coupledqk.bench.memory import resident
from coupledqk.config import LMConfig, ModelConfig, RunConfig, RuntimeConfig, TrainConfig
from coupledqk.files import write_atomic
from coupledqk.planning.memory import Strategy, peak_memory
from coupledqk.planning.trace import Pass
from coupledqk.provenance import commit, machine, versions
from coupledqk.training.allocator import keep_freed_memory
from coupledqk.training.mesh import SINGLE, Mesh
from coupledqk.training.parallel import Replicated, Sharded

MICRO_BATCHES = 2
ROWS = {"nano": 4, "tiny": 4, "small": 1}
"""Number of sequences in the micro-batch of a process, by preset."""
RETURN_FREED = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}
"""Environment for glibc: larger tensors are separate mappings, and free memory at the end of the heap is returned."""


@dataclass(frozen=True)
class Case:
    """A model, and how it is trained in the measured step."""

    preset: str
    variant: str
    strategy: Strategy
    checkpointing: bool
    rows: int
    seq_len: int

    @property
    def world(self) -> int:
        return 1 if self.strategy == "single" else WORLD

    @property
    def model(self) -> ModelConfig:
        return preset(self.preset, self.variant)

    def estimate(self) -> float:
        how = Pass(self.rows, self.seq_len, checkpointing=self.checkpointing, kernels="cpu")
        return peak_memory(self.model, how, True, self.strategy, self.world).total

    def measure(self) -> float:
        """The peak of this process and the others of its job, in bytes."""
        if self.strategy != "single":
            dist.init_process_group("gloo")
        mesh = {"single": lambda _: SINGLE, "ddp": Replicated, "fsdp": Sharded}[self.strategy](torch.device("cpu"))
        self._short_steps(mesh, preset("mini", self.variant, vocab_size=512))  # loads all libraries
        before = resident("VmRSS")
        training = self._short_steps(mesh, self.model)
        training.use(self._config(mesh, self.model, self.rows, self.seq_len))
        training.steps(1)
        largest = max(mesh.gather(resident("VmHWM") - before))
        if self.strategy != "single":
            dist.destroy_process_group()
        return largest

    def _short_steps(self, mesh: Mesh, model: ModelConfig) -> Training:
        """Trains on short sequences, which creates the optimizer's state and DDP's final buckets."""
        training = Training(self._config(mesh, model, rows=1, seq_len=8), mesh)
        training.model.gradient_checkpointing = self.checkpointing
        training.steps(2)
        return training

    @staticmethod
    def _config(mesh: Mesh, model: ModelConfig, rows: int, seq_len: int) -> RunConfig:
        batch_size = MICRO_BATCHES * rows * mesh.world
        train = TrainConfig(batch_size=batch_size, seq_len=seq_len, warmup=0, lr=1e-5, precision="fp32")
        # the tokenizer is not used
        task, runtime = LMConfig(tokenizer="bytes"), RuntimeConfig(micro_batch=rows)
        return RunConfig(model=model, task=task, train=train, runtime=runtime)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--presets", nargs="+", default=list(ROWS))
    parser.add_argument("--variants", nargs="+", default=["standard", "hamiltonian"])
    parser.add_argument("--strategies", nargs="+", choices=get_args(Strategy), default=get_args(Strategy))
    parser.add_argument(
        "--rows", type=int, help="sequences in a micro-batch of a process; the default is 1 for small, else 4"
    )
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--keep-freed", action="store_true", help="keep freed memory as coupledqk train does")
    parser.add_argument("--save", type=Path, help="folder to write DATE-plan.md to")
    parser.add_argument("--measure", choices=("plain", "checkpointing"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    cases = [
        Case(*what, options.rows or ROWS.get(what[0], 4), options.seq_len)
        for what in itertools.product(options.presets, options.variants, options.strategies, (False, True))
    ]
    if options.measure:
        measure_here(cases[options.measure == "checkpointing"], options.keep_freed)
        return
    text = report(cases, options.keep_freed)
    print(text)
    if options.save:
        date = datetime.datetime.now(datetime.UTC).date()
        write_atomic(options.save / f"{date}-plan{'-keep-freed' if options.keep_freed else ''}.md", text)


def report(cases: list[Case], keep_freed: bool) -> str:
    lines = [
        "| preset | attention | micro-batch | processes | checkpointing | estimate, MB | measured, MB | ratio |",
        "| --- | --- | --- | --- | --- | --: | --: | --: |",
    ]
    ratios = []
    for case in cases:
        expected, found = case.estimate(), measured(case, keep_freed)
        ratios.append(expected / found)
        processes = "1" if case.strategy == "single" else f"{WORLD}, {case.strategy}"
        cells = [case.preset, case.variant, f"{case.rows} × {case.seq_len}", processes]
        cells += ["yes" if case.checkpointing else "no", f"{expected / 1e6:,.0f}", f"{found / 1e6:,.0f}"]
        lines.append(f"| {' | '.join(cells)} | {ratios[-1]:.3f} |")
        print(lines[-1], file=sys.stderr, flush=True)
    freed = "keeps freed memory as coupledqk train does" if keep_freed else "returns freed memory at once"
    origin = f"{machine()}, torch {versions()['torch']}, 1 thread in each process, commit {commit()}"
    command = f"`python benchmarks/plan.py{''.join(f' {word}' for word in sys.argv[1:])}`"
    what = f"Peak memory of a process above the baseline, {MICRO_BATCHES} micro-batches in a step, fp32; glibc {freed}."
    summary = f"The ratio of estimate to measurement is between {min(ratios):.3f} and {max(ratios):.3f}."
    return "\n".join([what, "", command, "", origin, "", *lines, "", summary, ""])


def measured(case: Case, keep_freed: bool) -> float:
    """The peak memory of a case, measured in new processes, in bytes."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **({} if keep_freed else RETURN_FREED)}
    launcher = [sys.executable]
    if case.world > 1:
        launcher += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(case.world)]
    choice = ["--presets", case.preset, "--variants", case.variant, "--strategies", case.strategy]
    sizes = ["--rows", str(case.rows), "--seq-len", str(case.seq_len)]
    command = [*launcher, __file__, *choice, *sizes, "--measure", "checkpointing" if case.checkpointing else "plain"]
    return float(subprocess.check_output([*command, *(["--keep-freed"] if keep_freed else [])], env=environment))


def measure_here(case: Case, keep_freed: bool) -> None:
    if keep_freed:
        keep_freed_memory()
    found = case.measure()
    if int(os.environ.get("RANK", 0)) == 0:
        print(found)


if __name__ == "__main__":
    main()
