"""coupledqk params"""

import json
from dataclasses import dataclass
from typing import Any

from ..errors import unknown
from ..variants import PAPER_VARIANTS, PRESETS, VARIANTS, preset
from .output import table


@dataclass(frozen=True)
class Params:
    """Count parameters: the paper's table for any size, and whether we agree with it.

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
    """Learned positions; the paper's 60M table fits 2048, its 150M table 512."""
    json: bool = False
    """Print JSON instead of a table."""

    def run(self) -> None:
        rows = self.rows()
        if self.json:
            print(json.dumps(rows, indent=2))
            return
        base = PRESETS[self.preset]
        print(
            f"{self.preset}: d_model {base.d_model}, {base.n_heads} heads, {base.n_layers} layers, d_ff {base.d_ff}, "
            f"{self.vocab:,} tokens, {self.positions:,} positions\n"
        )
        print(
            table(
                ["attention", "parameters", "over standard", "", "paper", "agrees"],
                [
                    [
                        row["variant"],
                        f"{row['parameters']:,}",
                        f"{row['over_standard']:+,}",
                        f"{100 * row['overhead']:+.2f}%",
                        row["paper"] or "",
                        {True: "yes", False: "NO", None: ""}[row["agrees"]],
                    ]
                    for row in rows
                ],
            )
        )
        if any(row["agrees"] is False for row in rows):
            print("\nWhere and why the paper's figures differ: docs/paper-notes.md")

    def rows(self) -> list[dict[str, Any]]:
        from ..costs import count_parameters
        from ..published import PARAMETERS, agrees

        if self.preset not in PRESETS:
            raise unknown("preset", self.preset, PRESETS)
        shape = {"vocab_size": self.vocab, "n_positions": self.positions}
        counts = {name: count_parameters(preset(self.preset, name, **shape)) for name in VARIANTS}
        published = PARAMETERS.get(self.preset, {})
        return [
            {
                "variant": name,
                "parameters": count,
                "over_standard": count - counts["standard"],
                "overhead": count / counts["standard"] - 1,
                "in_paper": name in PAPER_VARIANTS,
                "paper": published.get(name),
                "agrees": agrees(count, published[name]) if name in published else None,
            }
            for name, count in counts.items()
        ]
