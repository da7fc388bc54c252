"""coupledqk import"""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Import:
    """Make a run folder of an exported model, to evaluate, to sample from, or to start another run from.

    Try it:

        coupledqk import exported/NAME
        coupledqk import exported/NAME --out runs/again
        coupledqk train --init-from runs/again --corpus other-texts/

    It takes what `coupledqk export` wrote, and what `save_pretrained` wrote for one of our models or for a DiffLlama with its
    tokenizer.
    """

    folder: Path
    """The exported model."""
    out: Path | None = None
    """The run folder; runs/NAME unless given."""

    def run(self) -> None:
        from ..coupling.versions import quiet
        from ..hf.export import import_run

        with quiet():
            run = import_run(self.folder, self.out or Path("runs") / self.folder.resolve().name)
        known = "with its results" if run.result else "without results: the weights are not those of an exported run"
        print(f"{run.path}: imported {known}; try `coupledqk generate {run.path} --prompt 'def '`")
