"""coupledqk train"""

import sys
from dataclasses import dataclass
from pathlib import Path

from ..config import DataConfig, RunConfig
from ..errors import CoupledQKError
from ..run_folder import RunFolder, default_name
from ..schema import change, to_toml
from .output import results_table
from .settings import WithSettings, parse_settings, settings_help


@dataclass(frozen=True)
class Train(WithSettings):
    """Train a model: text in, a run folder out. It can be stopped at any moment and resumed bit-identically.

    Try it:

        coupledqk train --variant euler
        coupledqk train --variant hamiltonian --corpus my-texts/ --steps 2000 --seed 1
        coupledqk train --recipe wikitext-103 --variant hamiltonian --device cuda
        coupledqk train --resume runs/NAME
        coupledqk train --variant euler --gate --init-from runs/NAME

    Every setting is a flag by its name (here with nano's values):

    """

    out: Path | None = None
    """The run folder; runs/NAME unless given."""
    resume: Path | None = None
    """Go on with this run; only runtime settings may be given besides."""
    tensorboard: bool = False
    """Log to RUN/tensorboard too."""
    wandb: bool = False
    """Log to Weights & Biases too."""
    dry_run: bool = False
    """Print the complete configuration and stop."""

    def run(self, flags: list[str]) -> None:
        if self.resume is not None:
            if self.recipe != "nano" or self.variant != "standard" or self.config or self.out:
                raise CoupledQKError(
                    "--resume takes its settings from the run: leave out --recipe, --variant, --config, --out"
                )
            config, out = RunFolder.open(self.resume).config, self.resume
            config = change(config, parse_settings(config, flags))
        else:
            config = self.run_config(flags)
            out = self.out or Path("runs") / default_name(config)
        if self.dry_run:
            print(to_toml(config), end="")
            return
        run = train_one(config, out, tensorboard=self.tensorboard, wandb=self.wandb)
        hint = f": try `coupledqk generate {run.path} --prompt 'def '`" if isinstance(config.task, DataConfig) else ""
        print(f"{results_table([run])}\n\n{run.path}{hint}")


Train.__doc__ = f"{Train.__doc__}{settings_help()}\n"


def train_one(
    config: RunConfig, out: Path, tensorboard: bool = False, wandb: bool = False, label: str | None = None
) -> RunFolder:
    """Trains with progress on the terminal; a run stopped on request ends the program and says how to go on."""
    from ..runs.progress import training_progress
    from ..runs.training import train_run
    from ..terminal import stop_on_signals, tokenizing
    from ..training import logs
    from ..training.events import Consumer

    def consumers(run: RunFolder) -> list[Consumer]:
        others = [*([logs.tensorboard(run.path)] if tensorboard else []), *([logs.wandb(run)] if wandb else [])]
        return [training_progress(label or out.name, config), *others]

    with stop_on_signals() as stop:
        run = train_run(config, out, consumers, stop, tokenizing)
    if not run.result:
        plugin = f" --plugin {config.plugin.path}" if config.plugin else ""
        print(f"stopped and saved; go on with\n\n    coupledqk train --resume {out}{plugin}", file=sys.stderr)
        sys.exit(130)
    return run
