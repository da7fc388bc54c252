"""coupledqk train"""

import contextlib
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..config import DataConfig, RunConfig
from ..errors import CoupledQKError
from ..files import in_shell
from ..report.listing import results_table
from ..run_folder import RunFolder, default_name
from ..schema import change, parse_flags, to_toml
from ..signals import advise
from ..terminal import is_first_process
from .settings import WithSettings, settings_help

SECONDS_FOR_FIRST = 5.0
"""Seconds after which another process reports an error that the first process of its job has not reported."""


@dataclass(frozen=True)
class Train(WithSettings):
    """Train a model on text and write a run folder. Training can be stopped at any time and resumed bit-identically.

    Try it:

        coupledqk train --variant euler
        coupledqk train --variant hamiltonian --corpus my-texts/ --steps 2000 --seed 1
        coupledqk train --recipe wikitext-103 --variant hamiltonian --device cuda
        coupledqk train --resume runs/NAME
        coupledqk train --variant euler --gate --init-from runs/NAME
        torchrun --nproc-per-node 8 -m coupledqk train --recipe wikitext-103-large --parallel fsdp

    Every setting is a flag (shown with the values of the nano recipe):

    """

    out: Path | None = None
    """Run folder to write; runs/NAME by default."""
    resume: Path | None = None
    """Run folder to resume from its last checkpoint. Only runtime settings can be changed."""
    tensorboard: bool = False
    """Also log to TensorBoard, in RUN/tensorboard."""
    wandb: bool = False
    """Also log to Weights & Biases."""
    dry_run: bool = False
    """Print the complete configuration and exit."""

    def run(self, flags: list[str]) -> None:
        with reported_by_first():
            config, out = self._settings(flags)
        if self.dry_run:
            print(to_toml(config), end="")
            return
        plugin = f" --plugin {in_shell(config.plugin.path)}" if config.plugin else ""
        advise(f"stopped; resume from the last checkpoint with\n\n    coupledqk train --resume {in_shell(out)}{plugin}")
        from ..runs import train

        run = train(config, out, tensorboard=self.tensorboard, wandb=self.wandb)
        if not is_first_process():
            return
        hint = (
            f": try `coupledqk generate {in_shell(run.path)} --prompt 'def '`"
            if isinstance(config.task, DataConfig)
            else ""
        )
        print(f"{results_table([run])}\n\n{run.path}{hint}")

    def _settings(self, flags: list[str]) -> tuple[RunConfig, Path]:
        """The configuration of the run and its folder."""
        if self.resume is None:
            config = self.run_config(flags)
            return config, self.out or Path("runs") / default_name(config)
        if self.recipe != "nano" or self.variant != "standard" or self.config or self.out:
            raise CoupledQKError(
                "--resume takes its settings from the run: leave out --recipe, --variant, --config, --out"
            )
        config = RunFolder.open(self.resume).config
        return change(config, parse_flags(config, flags)), self.resume


@contextlib.contextmanager
def reported_by_first() -> Iterator[None]:
    """Makes the first process of a job report an error that occurs on all of them. The others wait until torchrun ends them."""
    try:
        yield
    except CoupledQKError:
        if not is_first_process():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            time.sleep(SECONDS_FOR_FIRST)
        raise


Train.__doc__ = f"{(Train.__doc__ or '').rstrip()}\n\n{settings_help()}\n"
