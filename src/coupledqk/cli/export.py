"""coupledqk export"""

from dataclasses import dataclass
from pathlib import Path

from ..files import in_shell
from ..terminal import wrapped
from .plugin import WithPlugin


@dataclass(frozen=True)
class Export(WithPlugin):
    """Write a finished run as a Hugging Face model: weights, tokenizer and a model card with its perplexity.

    Try it:

        coupledqk export runs/NAME exported/NAME

    To load it in Python, `import coupledqk.hf` and call transformers' AutoModelForCausalLM.from_pretrained.
    """

    run_folder: Path
    """Folder of a finished run."""
    folder: Path
    """Folder to write; it must not exist."""
    push: str | None = None
    """Repository on the Hugging Face hub to upload the folder to, as user/name; it is created if it does not exist."""

    def run(self) -> None:
        from ..coupling.versions import quiet
        from ..hf.export import export_run, push_export
        from ..runs import Run

        run = Run.open(self.run_folder)
        with quiet():
            export_run(run, self.folder)
            address = push_export(self.folder, self.push) if self.push else None
        best = run.result["best"]
        print(f"{self.folder}: perplexity {best['perplexity']:.3f}, {best['bits_per_byte']:.4f} bits per byte")
        print(wrapped(f"\nPerplexity: {run.result['definition']}."))
        if address:
            print(f"Uploaded to {address}")
        folder = in_shell(self.folder)
        print(f"\nTry `coupledqk harness {folder} --tasks wikitext`, or `coupledqk import {folder}`.")
