"""coupledqk generate"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..errors import CoupledQKError
from ..terminal import status
from .plugin import WithPlugin
from .sample import WithSample


@dataclass(frozen=True)
class Generate(WithSample, WithPlugin):
    """Continue a text with a trained run, printing each token as it is sampled.

    Try it:

        coupledqk generate --sample --prompt "def read("      # the coupled model that comes with the package
        coupledqk generate runs/NAME --prompt "def read("
        coupledqk generate runs/NAME --prompt "import os" --tokens 200 --temperature 0.7 --top-p 0.9 --seed 1
        echo "class Tree:" | coupledqk generate runs/NAME --prompt -
    """

    run_folders: tuple[Path, ...]
    """The run folder."""
    prompt: str = "\n"
    """Text to continue; - reads it from standard input."""
    tokens: int = 100
    """Maximum number of tokens to generate; generation stops early at an end-of-text token."""
    temperature: float = 0.8
    """Sampling temperature; 0 always selects the most likely token."""
    top_k: int | None = None
    """Sample from the k most likely tokens only."""
    top_p: float | None = None
    """Sample from the smallest set of tokens whose total probability is at least p (nucleus sampling)."""
    seed: int | None = None
    """Seed of the sampling; the same seed gives the same text."""
    checkpoint: Literal["best", "final"] = "best"
    """Weights to sample from: those with the lowest validation loss (best), or those after the last step (final)."""
    device: str = "auto"
    """Device to run on: auto, cpu, cuda, cuda:1 ..."""
    int8: bool = False
    """Quantize the weight matrices to 8 bits, for faster generation on a CPU; `coupledqk eval --int8` shows the perplexity."""

    def run(self) -> None:
        prompt = read_standard_input() if self.prompt == "-" else self.prompt
        with status("loading the model …"):
            from ..runs import Run

            folders = self.folders(self.run_folders, ["hamiltonian"])
            if len(folders) != 1:
                raise CoupledQKError(f"{len(folders)} run folders given: name one, or use --sample")
            pieces = Run.open(folders[0]).generate(
                prompt,
                self.tokens,
                self.temperature,
                self.top_k,
                self.top_p,
                self.seed,
                self.checkpoint,
                self.device,
                self.int8,
            )
            # errors in the run or the prompt are reported before the prompt is printed
            first = next(pieces, "")
        print(prompt.encode("utf-8", "replace").decode(), end=first, flush=True)
        for piece in pieces:
            print(piece, end="", flush=True)
        print()


def read_standard_input() -> str:
    if sys.stdin is None:
        raise CoupledQKError("standard input is closed: give the text after --prompt")
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise CoupledQKError(f"standard input is not valid UTF-8 ({error.reason} at byte {error.start})") from None
