"""coupledqk generate"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..errors import CoupledQKError
from ..run_folder import RunFolder
from .plugin import WithPlugin


@dataclass(frozen=True)
class Generate(WithPlugin):
    """Continue a text with a trained run, token by token as it is sampled.

    Try it:

        coupledqk generate runs/NAME --prompt "def read("
        coupledqk generate runs/NAME --prompt "import os" --tokens 200 --temperature 0.7 --top-p 0.9 --seed 1
        echo "class Tree:" | coupledqk generate runs/NAME --prompt -
    """

    run_folder: Path
    """The run."""
    prompt: str = "\n"
    """The text to continue; - reads it from standard input."""
    tokens: int = 100
    """How many tokens to add at most; an end-of-text token ends it sooner."""
    temperature: float = 0.8
    """0 takes the likeliest token each time."""
    top_k: int | None = None
    """Sample among the k likeliest tokens only."""
    top_p: float | None = None
    """Sample among the smallest set of tokens with this probability."""
    seed: int | None = None
    """The same seed gives the same text."""
    checkpoint: Literal["best", "final"] = "best"
    device: str = "auto"

    def run(self) -> None:
        import torch

        from ..tasks.models import load_model, run_tokenizer

        run = RunFolder.open(self.run_folder)
        model, tokenizer = load_model(run, self.checkpoint, self.device), run_tokenizer(run)
        text = sys.stdin.read() if self.prompt == "-" else self.prompt
        ids = tokenizer.encode(text)
        if not ids:
            raise CoupledQKError("the prompt is empty: give at least one character, such as --prompt 'def '")
        prompt = torch.tensor([ids], device=next(model.parameters()).device)
        print(text, end="", flush=True)
        new = model.stream(
            prompt,
            self.tokens,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            seed=self.seed,
            stop_token=tokenizer.end_of_text,
        )
        ids = (int(token) for token in new)
        for piece in tokenizer.decode_stream(token for token in ids if token != tokenizer.end_of_text):
            print(piece, end="", flush=True)
        print()
