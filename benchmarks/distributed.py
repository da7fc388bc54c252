"""Measures two processes with one thread each that train one model: the speed of DDP, and the memory of DDP and FSDP2.

`speed` alternates between DDP, where both processes train one model, and independent training, where each process trains a
model of its own. Each round gives the ratio of DDP's tokens per second to the sum over the independent processes. `memory`
counts the bytes of parameters, gradients and optimizer state that each process holds after a step. They are counted from the
tensors, so the result does not depend on the load of the machine. Activations and communication buffers are not counted.

    python benchmarks/distributed.py speed --save results/bench
    python benchmarks/distributed.py memory --preset small --save results/bench
"""

import argparse
import datetime
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from coupledqk.bench.records import Quartiles
from coupledqk.config import LMConfig, RunConfig, RuntimeConfig, TrainConfig
from coupledqk.files import write_atomic
from coupledqk.model import TransformerLM
from coupledqk.provenance import commit, machine, versions
from coupledqk.training.checkpoints import Checkpoints
from coupledqk.training.loop import ALL, DivergenceWatch, take_step
from coupledqk.training.mesh import SINGLE, Batch, Mesh
from coupledqk.training.optimizer import build_optimizer
from coupledqk.training.parallel import Replicated, Sharded
from coupledqk.training.sharded import is_sharded
from coupledqk.variants import preset

WORLD = 2


class RandomTokens:
    """A task with random tokens and targets."""

    chance_loss = 1e9

    def __init__(self, config: RunConfig) -> None:
        rows = (config.train.batch_size, config.train.seq_len)
        generator = torch.Generator().manual_seed(0)
        tokens, targets = (torch.randint(config.model.vocab_size, rows, generator=generator) for _ in range(2))
        self.rows = (tokens, targets)

    def batch(self, step: int, rows: slice = ALL) -> Batch:
        return tuple(part[rows] for part in self.rows)

    def loss_sum(self, model: nn.Module, micro: Batch) -> Tensor:
        return model(*micro, reduction="sum")

    def evaluate(self, model: nn.Module, mesh: Mesh = SINGLE) -> dict[str, float]:
        raise AssertionError("nothing is evaluated")


class Training:
    """A new model and the state of its training loop."""

    def __init__(self, config: RunConfig, mesh: Mesh) -> None:
        self.mesh = mesh
        self.use(config)
        self.model = TransformerLM(config.model)
        self.wrapped = mesh.wrap(self.model, compiled=False)
        self.optimizer = build_optimizer(self.model, config.train)
        self.watch = DivergenceWatch(self.task.chance_loss, Checkpoints(Path(), keep=1))
        self.scaler = torch.amp.GradScaler("cpu", enabled=False)

    def use(self, config: RunConfig) -> None:
        """Sets the batch and other training settings of the following steps."""
        self.config, self.task = config, RandomTokens(config)

    def steps(self, n: int) -> None:
        for step in range(n):
            take_step(
                self.wrapped, self.task, self.optimizer, self.scaler, self.config, step, self.watch, self.mesh
            )  # fmt: skip

    @property
    def tokens(self) -> int:
        return self.config.train.batch_size * self.config.train.seq_len


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("speed", "memory"))
    parser.add_argument("--preset", default="tiny")
    parser.add_argument("--variant", default="hamiltonian")
    parser.add_argument("--batch", type=int, default=2, help="sequences per process")
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--steps", type=int, default=2, help="steps per round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--save", type=Path, help="folder to write DATE-distributed-WHAT.md to")
    options = parser.parse_args()
    if not dist.is_torchelastic_launched():
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(WORLD)]
        sys.exit(subprocess.call([*launcher, *sys.argv]))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    lines = speed(options) if options.what == "speed" else memory(options)
    if dist.get_rank() == 0:
        size = f"{options.preset}, {options.variant}, {options.batch} × {options.seq_len} tokens per process, fp32"
        origin = f"{machine()}, torch {versions()['torch']}, {WORLD} processes × 1 thread, commit {commit()}"
        text = "\n".join([size, "", origin, "", *lines, ""])
        print(text)
        if options.save:
            date = datetime.datetime.now(datetime.UTC).date()
            write_atomic(options.save / f"{date}-distributed-{options.what}.md", text)
    dist.destroy_process_group()


def run_config(options: argparse.Namespace, world: int) -> RunConfig:
    train = TrainConfig(batch_size=options.batch * world, seq_len=options.seq_len, warmup=0, lr=1e-5, precision="fp32")
    runtime = RuntimeConfig(micro_batch=options.batch)
    # the tokenizer is not used
    return RunConfig(model=preset(options.preset, options.variant), task=LMConfig(), train=train, runtime=runtime)


def speed(options: argparse.Namespace) -> list[str]:
    mesh = Replicated(torch.device("cpu"))
    alone, together = Training(run_config(options, 1), SINGLE), Training(run_config(options, WORLD), mesh)
    ratios: list[float] = []
    for number in range(options.rounds + 1):
        rates = {}
        for training in (alone, together) if number % 2 else (together, alone):
            mesh.wait()
            start = time.perf_counter()
            training.steps(options.steps)
            rates[training] = training.tokens * options.steps / (time.perf_counter() - start)
            mesh.wait()
        # both processes finish a common step together, so either one's time is that of DDP
        independent, summed = mesh.totals(rates[alone], rates[together] / WORLD)
        if number:  # the first round warms up
            ratios.append(summed / independent)
    found = Quartiles.of(ratios)
    return [
        f"Tokens per second of DDP relative to the sum of {WORLD} independent processes, {options.rounds} rounds of "
        f"{options.steps} steps: median {found.median:.3f}, quartiles {found.low:.3f} to {found.high:.3f}",
        "",
        f"All rounds: {', '.join(f'{ratio:.3f}' for ratio in ratios)}",
    ]


def memory(options: argparse.Namespace) -> list[str]:
    lines = ["| bytes per process | DDP | FSDP2, larger process | ratio |", "| --- | --: | --: | --: |"]
    counts = []
    for strategy in (Replicated, Sharded):
        mesh = strategy(torch.device("cpu"))
        training = Training(run_config(options, WORLD), mesh)
        held: dict[str, int] = {}
        # gradients are cleared after the optimizer's step
        training.optimizer.register_step_post_hook(lambda *_, held=held, own=training: held.update(tensors(own)))
        training.steps(1)
        counts.append({name: max(mesh.gather(held[name])) for name in held})
    for name in counts[0]:
        whole, share = counts[0][name], counts[1][name]
        lines.append(f"| {name} | {whole:,} | {share:,} | {share / whole:.4f} |")
    return lines


def tensors(training: Training) -> dict[str, int]:
    parameters = list(training.model.parameters())
    parts = {
        "parameters": parameters,
        "gradients": [p.grad for p in parameters if p.grad is not None],
        "optimizer state": [value for state in training.optimizer.state.values() for value in state.values()],
    }
    counts = {name: sum(map(local_bytes, values)) for name, values in parts.items()}
    return {**counts, "all three": sum(counts.values())}


def local_bytes(tensor: Tensor) -> int:
    return (tensor.to_local() if is_sharded(tensor) else tensor).nbytes


if __name__ == "__main__":
    main()
