"""coupledqk train"""

from dataclasses import dataclass
from pathlib import Path

from ..config import DataConfig
from ..errors import CoupledQKError
from ..report.listing import results_table
from ..run_folder import RunFolder, default_name
from ..schema import change, parse_flags, to_toml
from ..signals import advise
from ..terminal import is_first_process
from .settings import WithSettings, settings_help


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
        if self.resume is not None:
            if self.recipe != "nano" or self.variant != "standard" or self.config or self.out:
                raise CoupledQKError(
                    "--resume takes its settings from the run: leave out --recipe, --variant, --config, --out"
                )
            config, out = RunFolder.open(self.resume).config, self.resume
            config = change(config, parse_flags(config, flags))
        else:
            config = self.run_config(flags)
            out = self.out or Path("runs") / default_name(config)
        if self.dry_run:
            print(to_toml(config), end="")
            return
        plugin = f" --plugin {config.plugin.path}" if config.plugin else ""
        advise(f"stopped; resume from the last checkpoint with\n\n    coupledqk train --resume {out}{plugin}")
        from ..runs import train

        run = train(config, out, tensorboard=self.tensorboard, wandb=self.wandb)
        if not is_first_process():
            return
        hint = f": try `coupledqk generate {run.path} --prompt 'def '`" if isinstance(config.task, DataConfig) else ""
        print(f"{results_table([run])}\n\n{run.path}{hint}")


Train.__doc__ = f"{Train.__doc__}{settings_help()}\n"
