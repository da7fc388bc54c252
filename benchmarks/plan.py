"""The memory that `coupledqk plan` estimates beside what a training step needs on this CPU.

Each case runs in a process of its own: two steps of AdamW with two micro-batches each. Measured is the peak of resident memory
minus what is resident after a step of a tiny model, which has loaded all libraries. The estimate is that of the same passes
with the CPU's kernels.

glibc keeps freed memory for later, in pieces that large tensors do not fit in. By default it is told to return every tensor's
memory at once, so that the peak is that of the tensors; --keep-freed measures with glibc's own settings instead.

    python benchmarks/plan.py
    python benchmarks/plan.py --presets nano --variants standard hamiltonian diff
"""

import argparse
import json
import os
import subprocess
import sys

import torch

from coupledqk import TransformerLM, preset
from coupledqk.bench.memory import resident
from coupledqk.config import ModelConfig, TrainConfig
from coupledqk.planning.memory import peak_memory
from coupledqk.planning.trace import Pass
from coupledqk.provenance import commit, machine, versions
from coupledqk.terminal import table
from coupledqk.training.optimizer import build_optimizer

MICRO_BATCHES = 2
RETURN_FREED = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}
"""For glibc: tensors from this size on are mappings of their own, and the heap ends where its last piece in use does."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--presets", nargs="+", default=["nano", "tiny", "small"])
    parser.add_argument("--variants", nargs="+", default=["standard", "hamiltonian"])
    parser.add_argument("--rows", type=int, default=4, help="sequences in a micro-batch")
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--measure", nargs=3, metavar=("PRESET", "VARIANT", "CHECKPOINTING"), help=argparse.SUPPRESS)
    parser.add_argument("--keep-freed", action="store_true", help="let glibc keep freed memory, as it does by default")
    options = parser.parse_args()
    if options.measure:
        name, variant, checkpointing = options.measure
        print(measured(preset(name, variant), options.rows, options.seq_len, json.loads(checkpointing)))
        return
    environment = {**os.environ, **({} if options.keep_freed else RETURN_FREED)}
    rows = []
    for name in options.presets:
        for variant in options.variants:
            for checkpointing in ("false", "true"):
                how = Pass(options.rows, options.seq_len, checkpointing=checkpointing == "true", kernels="cpu")
                expected = peak_memory(preset(name, variant), how, accumulates=True).total
                command = [*sys.orig_argv, "--measure", name, variant, checkpointing]
                found = float(subprocess.check_output(command, env=environment))
                sizes = [f"{size / 1e6:,.0f}" for size in (expected, found)]
                rows.append([name, variant, checkpointing, *sizes, f"{expected / found:.3f}"])
    print(f"{machine()}, torch {versions()['torch']}, commit {commit()}")
    print(f"micro-batches of {options.rows} × {options.seq_len} tokens, in fp32\n")
    print(table(["preset", "attention", "checkpointing", "estimate, MB", "measured, MB", "ratio"], rows))


def measured(config: ModelConfig, rows: int, seq_len: int, checkpointing: bool) -> float:
    take_steps(preset("mini", config.attention, vocab_size=32), 1, 8, checkpointing)
    before = resident("VmRSS")
    take_steps(config, rows, seq_len, checkpointing)
    return resident("VmHWM") - before


def take_steps(config: ModelConfig, rows: int, seq_len: int, checkpointing: bool) -> None:
    model = TransformerLM(config)
    model.gradient_checkpointing = checkpointing
    optimizer = build_optimizer(model, TrainConfig())
    tokens = torch.randint(config.vocab_size, (rows, seq_len))
    for _ in range(2):
        for _ in range(MICRO_BATCHES):
            model(tokens, tokens).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
