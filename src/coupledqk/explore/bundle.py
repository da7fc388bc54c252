"""What one or two runs do with a text, as plain JSON: the bundle, all that the page knows.

format, version     "coupledqk explorer", 1
tokens              the text's tokens; bytes that are no UTF-8 by themselves are written \\xe2
cut_from            how many tokens the text had before it was cut, or null
runs                for each run:
  name, variant, checkpoint      which run it is, and whether its best or its final weights
  n_layers, n_heads
  causal, signed                 whether no token looks ahead; whether weights can be negative (differential scoring)
  maps                           packed (n_layers, n_heads, T, T): query rows, key columns, codes of `packing.weight_codes`
  entropy, effective_rank        a number per layer and head, from the exact maps
  paths                          null, and `no_paths` says why; or
    n_steps, parts               parts: maps per head, 2 for differential scoring
    points, scale                packed (n_layers, parts · n_heads, T, n_steps + 1, 4): `paths.plane_paths` in units of
                                 scale[layer][head]; the second parts come after all first ones
    held                         packed (n_layers, parts · n_heads, T): the part of the squared length held, times 10,000
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from ..analysis import Tape, record
from ..analysis.measures import effective_rank, entropy, singular_values
from ..errors import CoupledQKError
from ..model import TransformerLM
from ..registry import SCORINGS as SCORING_ENTRIES
from ..run_folder import RunFolder, variant_name
from ..scoring import SCORINGS
from .packing import pack, scaled_codes, weight_codes
from .paths import plane_paths

if TYPE_CHECKING:
    from ..data.tokenizers import Tokenizer

VERSION = 1
MOST_TOKENS = 512


@dataclass(frozen=True)
class Reader:
    """A trained run, loaded to read texts."""

    name: str
    variant: str
    checkpoint: str
    model: TransformerLM
    tokenizer: "Tokenizer"

    @property
    def positions(self) -> int | None:
        """How many tokens the model can read, if there is a bound."""
        config = self.model.config
        return config.n_positions if config.positions == "learned" else None


def open_readers(
    folders: Sequence[Path], checkpoint: Literal["best", "final"] = "best", device: str = "auto"
) -> list[Reader]:
    """Loads one run, or two to compare."""
    from ..tasks.models import load_model, run_tokenizer

    if not 1 <= len(folders) <= 2:
        raise CoupledQKError(f"{len(folders)} runs given: name one run folder, or two to compare them")
    names = [folder.resolve().name for folder in folders]
    if len(set(names)) < len(names):
        names = [str(folder) for folder in folders]
    runs = [RunFolder.open(folder) for folder in folders]
    return [
        Reader(name, variant_name(run.config), checkpoint, load_model(run, checkpoint, device), run_tokenizer(run))
        for name, run in zip(names, runs, strict=True)
    ]


def make_bundle(readers: Sequence[Reader], text: str, cut: bool = False) -> dict[str, Any]:
    """`cut` keeps the beginning of a text that is too long."""
    text = text.encode("utf-8", "replace").decode()  # an argument that was no UTF-8 holds lone surrogates
    ids = [reader.tokenizer.encode(text) for reader in readers]
    n_tokens = len(ids[0])
    if not n_tokens:
        raise CoupledQKError("the text is empty: give at least one character")
    limit = _limit(readers, n_tokens, cut)
    pieces = _common_pieces(readers, ids)[:limit]
    return {
        "format": "coupledqk explorer",
        "version": VERSION,
        "tokens": [piece.decode("utf-8", "backslashreplace") for piece in pieces],
        "cut_from": n_tokens if n_tokens > limit else None,
        "runs": [_describe(reader, own[:limit]) for reader, own in zip(readers, ids, strict=True)],
    }


def _limit(readers: Sequence[Reader], n_tokens: int, cut: bool) -> int:
    positions = [reader.positions for reader in readers if reader.positions is not None]
    limit = min([MOST_TOKENS, *positions])
    if n_tokens > limit and not cut:
        bound = f"the model has {limit} positions" if limit in positions else f"the page shows {limit} at most"
        raise CoupledQKError(
            f"the text has {n_tokens:,} tokens and {bound}: shorten it, or let --cut keep its beginning"
        )
    return limit


def _common_pieces(readers: Sequence[Reader], ids: Sequence[Sequence[int]]) -> list[bytes]:
    pieces = [[r.tokenizer.tokens[token] for token in own] for r, own in zip(readers, ids, strict=True)]
    if any(own != pieces[0] for own in pieces):
        said = ", ".join(f"{r.name}: {len(own)} by {r.tokenizer.name}" for r, own in zip(readers, ids, strict=True))
        raise CoupledQKError(
            f"the runs split the text into different tokens ({said}), so their maps have no common rows: explore one at a time"
        )
    return pieces[0]


@torch.no_grad()
def _describe(reader: Reader, ids: Sequence[int]) -> dict[str, Any]:
    attention = reader.model.config.attention
    with record(reader.model) as tape:
        reader.model.hidden(torch.tensor([ids], device=next(reader.model.parameters()).device))
    maps = torch.stack([layer.pattern()[0] for layer in tape.layers]).cpu()  # (L, H, T, T)
    if not bool(maps.isfinite().all()):
        raise CoupledQKError(
            f"the attention of {reader.name} is not finite: did the run diverge? Try another checkpoint"
        )
    return {
        "name": reader.name,
        "variant": reader.variant,
        "checkpoint": reader.checkpoint,
        "n_layers": maps.shape[0],
        "n_heads": maps.shape[1],
        "causal": attention.causal,
        "signed": SCORINGS[attention.scoring.kind].signed,
        "maps": pack(weight_codes(maps)),
        "entropy": _rounded(entropy(maps)),
        "effective_rank": _rounded(effective_rank(singular_values(maps))),
        **_paths(tape, maps.shape[1], SCORING_ENTRIES[attention.scoring.kind].queries),
    }


def _paths(tape: Tape, n_heads: int, queries: int) -> dict[str, Any]:
    try:
        layers = [plane_paths(layer) for layer in tape.layers]
    except CoupledQKError as reason:
        return {"paths": None, "no_paths": str(reason)}
    # several queries of a head are side by side in the model; here the second ones come after all first ones
    order = torch.arange(layers[0][0].shape[0]).view(-1, queries).T.flatten()
    points = torch.stack([points[order] for points, _ in layers])  # (L, parts · H, T, n + 1, 4)
    held = torch.stack([held[order] for _, held in layers])
    scale = points.abs().amax((2, 3, 4)).clamp(min=1e-30) / 32_767
    return {
        "paths": {
            "n_steps": points.shape[3] - 1,
            "parts": points.shape[1] // n_heads,
            "points": pack(scaled_codes(points, scale[..., None, None, None])),
            "scale": scale.tolist(),
            "held": pack(scaled_codes(held, torch.tensor(1e-4))),
        },
    }


def _rounded(values: Tensor) -> list[list[float]]:
    return [[round(value, 4) for value in row] for row in values.tolist()]
