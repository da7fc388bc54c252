"""coupledqk import"""

from dataclasses import dataclass
from pathlib import Path

from ..files import in_shell


@dataclass(frozen=True)
class Import:
    """Create a run folder from an exported model, to evaluate it, to sample from it, or to start another run from it.

    Try it:

        coupledqk import exported/NAME
        coupledqk import exported/NAME --out runs/again
        coupledqk eval runs/again --corpus other-texts/

    The folder may have been written by `coupledqk export`, or by `save_pretrained` of a coupledqk model or of a DiffLlama
    with its tokenizer.
    """

    folder: Path
    """Folder of the exported model."""
    out: Path | None = None
    """Run folder to write; runs/NAME by default."""

    def run(self) -> None:
        from ..coupling.versions import quiet
        from ..hf.export import import_run

        with quiet():
            run = import_run(self.folder, self.out or Path("runs") / self.folder.resolve().name)
        known = "with its results" if run.result else "without results: the weights are not those of an exported run"
        print(f"{run.path}: imported {known}; try `coupledqk generate {in_shell(run.path)} --prompt 'def '`")
