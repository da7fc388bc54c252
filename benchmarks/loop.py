"""Overhead of the training loop over bare forward, backward and optimizer steps, and the time it waits for data.

Both train the same model on the same batches and alternate. The loop does everything that a run does between two evaluations:
it slices batches from the text, sets the learning rate, clips the gradient, checks for divergence and writes the logs. The
bare steps use batches that were prepared in advance. Each round gives a ratio.

    python benchmarks/loop.py
    python benchmarks/loop.py --preset nano --vocab 2048 --batch 8 --seq-len 256
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from coupledqk.bench.timing import round_robin, speeds
from coupledqk.config import LMConfig, RunConfig, RuntimeConfig, TrainConfig
from coupledqk.data.batches import Batch, train_batch
from coupledqk.model import TransformerLM
from coupledqk.provenance import commit, machine, versions
from coupledqk.run_folder import RunFolder
from coupledqk.training.checkpoints import Checkpoints
from coupledqk.training.events import Step
from coupledqk.training.logs import RunLog
from coupledqk.training.loop import ALL, train
from coupledqk.training.mesh import SINGLE, Mesh
from coupledqk.training.optimizer import build_optimizer
from coupledqk.variants import preset


class RandomText:
    """A Task of predicting random tokens, which records the time spent on making batches."""

    chance_loss = 1e9

    def __init__(self, config: RunConfig) -> None:
        self.config, self.seconds = config, 0.0
        self.tokens = np.random.default_rng(0).integers(config.model.vocab_size, size=1_000_000, dtype=np.uint16)

    def batch(self, step: int, rows: slice = ALL) -> Batch:
        start = time.perf_counter()
        batch = train_batch(self.tokens, self.config.train.seq_len, self.config.train.batch_size, 0, step, rows)
        self.seconds += time.perf_counter() - start
        return batch

    def loss_sum(self, model: nn.Module, micro: tuple[Tensor, ...]) -> Tensor:
        return model(*micro, reduction="sum")

    def evaluate(self, model: nn.Module, mesh: Mesh = SINGLE) -> dict[str, float]:
        raise AssertionError("the run ends before its first evaluation")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="small")
    parser.add_argument("--variant", default="standard")
    parser.add_argument("--vocab", type=int, default=50_257)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--steps", type=int, default=3, help="number of steps in a round")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    total = options.steps * (options.rounds + 1)  # includes a warm-up round
    config = RunConfig(
        model=preset(options.preset, options.variant, vocab_size=options.vocab),
        train=TrainConfig(
            steps=total + 1,
            warmup=0,
            batch_size=options.batch,
            seq_len=options.seq_len,
            precision="fp32",
            eval_every=total + 1,
        ),
        task=LMConfig(tokenizer="bytes"),  # not used
        runtime=RuntimeConfig(save_every=total + 1),
    )
    with tempfile.TemporaryDirectory() as folder:
        report(config, Path(folder), options.steps, options.rounds)


def report(config: RunConfig, folder: Path, steps: int, rounds: int) -> None:
    task = RandomText(config)
    bare_step, loop_step = bare_steps(config, task), loop_steps(config, task, folder)
    waits = []

    def loop() -> float:
        task.seconds = 0.0
        seconds = seconds_of(loop_step, steps)
        waits.append(task.seconds / seconds)
        return seconds

    times = round_robin({"bare": lambda: seconds_of(bare_step, steps), "loop": loop}, rounds, print)
    ratio = speeds(times, "loop", 1)["bare"].relative  # ratio of speeds bare / loop = ratio of times loop / bare
    size = f"{config.train.batch_size} × {config.train.seq_len}"
    print(f"{machine()}, torch {versions()['torch']}, {torch.get_num_threads()} threads, commit {commit()}")
    print(
        f"{config.model.n_layers} layers of {config.model.d_model}, {size} tokens, fp32, {rounds} rounds of {steps} steps"
    )
    print(f"time, loop / bare steps: median {ratio.median:.4f}, quartiles {ratio.low:.4f} to {ratio.high:.4f}")
    print(f"share of the loop's time spent waiting for data: median {statistics.median(waits[1:]):.4%}")


def bare_steps(config: RunConfig, task: RandomText) -> Callable[[], None]:
    model = TransformerLM(config.model)
    optimizer = build_optimizer(model, config.train)
    batches = iter([task.batch(step) for step in range(config.train.steps)])

    def step() -> None:
        model(*next(batches)).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def loop_steps(config: RunConfig, task: RandomText, folder: Path) -> Callable[[], None]:
    run = RunFolder(folder / "run")
    run.create(config)
    log = RunLog(run, config.train.log_every)
    events = train(TransformerLM(config.model), task, config, Checkpoints(run.path / "checkpoints", keep=1))

    def step() -> None:
        for event in events:
            log(event)
            if isinstance(event, Step):
                return

    return step


def seconds_of(step: Callable[[], None], steps: int) -> float:
    start = time.perf_counter()
    for _ in range(steps):
        step()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
