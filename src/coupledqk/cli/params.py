"""coupledqk params"""

import json
from dataclasses import asdict, dataclass

from ..analysis.parameters import parameter_table
from ..terminal import table
from ..variants import PRESETS
from .plugin import WithPlugin

HEAD = ["attention", "parameters", "over standard", "", "paper", "agrees"]


@dataclass(frozen=True)
class Params(WithPlugin):
    """Count parameters: the paper's table at any model size, with a check against the published figures.

    Try it:

        coupledqk params
        coupledqk params --preset medium --positions 512
        coupledqk params --preset tiny --vocab 64 --positions 256 --json
    """

    preset: str = "small"
    """Model size: mini, nano, tiny, small, medium or large."""
    vocab: int = 50_257
    """Vocabulary size; the paper's language models use GPT-2's 50,257."""
    positions: int = 2048
    """Number of learned positions. The paper's counts correspond to 2048 positions at 60M and 512 at 150M."""
    json: bool = False
    """Print JSON instead of a table."""

    def run(self) -> None:
        rows = parameter_table(self.preset, self.vocab, self.positions)
        if self.json:
            print(json.dumps([asdict(row) for row in rows], indent=2))
            return
        size = PRESETS[self.preset]
        shape = f"d_model {size.d_model}, {size.n_heads} heads, {size.n_layers} layers, d_ff {size.d_ff}"
        print(f"{self.preset}: {shape}, {self.vocab:,} tokens, {self.positions:,} positions\n")
        cells = [
            [row.variant, f"{row.parameters:,}", f"{row.over_standard:+,}", f"{row.overhead:+.2%}", row.paper or "",
             {True: "yes", False: "NO", None: ""}[row.agrees]]
            for row in rows
        ]  # fmt: skip
        print(table(HEAD, cells))
        if any(row.agrees is False for row in rows):
            print("\nWhere and why the paper's figures differ: docs/paper-notes.md")
