"""The bundle: the attention of one or two runs on a text as JSON, which contains all data of the page.

format, version     "coupledqk explorer", 2
tokens              the text's tokens; bytes that are not valid UTF-8 on their own are written as \\xe2
cut_from            number of tokens of the text before it was cut, or null
runs                for each run:
  name, variant, checkpoint      name and variant of the run, and the weights that were used (best or final)
  n_layers, n_heads              numbers of layers and heads, which are counted from 0
  causal, signed                 whether attention is causal; whether weights can be negative (differential scoring)
  n_steps                        number of integration steps; 1 for dynamics without steps, 0 for none
  map_steps                      the steps whose maps are stored: all, or the first and the last if all would be too large
  maps                           packed (len(map_steps), n_layers, n_heads, T, T): query rows, key columns, codes of
                                 `packing.weight_codes`
  changed                        share of attention that the dynamics move to other tokens, by layer and head; or null
  step_size                      dt by layer and head; or null
  tour                           the stops of `tour.find_stops`
  motion                         null for a run without dynamics; or
    parts                        maps per head, 2 for differential scoring
    points, scale                packed (n_layers, parts · n_heads, T, n_steps + 1, 4): `motion.plane_paths` in units of
                                 scale[layer][head]; the second parts come after all first ones
    held                         packed (n_layers, parts · n_heads, T): the share of the squared length kept, times 10,000
    numbers                      packed (n_layers, parts · n_heads, T, n_steps + 1, 7): `motion.NUMBERS`, in
                                 units of `motion.UNITS`

The effects of interventions on the loss take longer to compute, so they are separate: `make_effects`.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from ..analysis import Tape, loss_effects, record
from ..dynamics import Dynamics
from ..errors import CoupledQKError
from ..model import TransformerLM
from ..run_folder import variant_name
from .motion import UNITS, motion_numbers, plane_paths, states_of
from .packing import pack, scaled_codes, weight_codes
from .tour import find_stops

if TYPE_CHECKING:
    from ..data.tokenizers import Tokenizer

VERSION = 2
MOST_TOKENS = 512
MOST_WEIGHTS = 30_000_000
"""Maximum number of weights for which the maps of all steps are stored, about 25 MB compressed. With more weights, only
the maps of the first and the last step are stored."""


@dataclass(frozen=True)
class Reader:
    """A trained run with its model and tokenizer loaded."""

    name: str
    variant: str
    checkpoint: str
    model: TransformerLM
    tokenizer: "Tokenizer"

    @property
    def positions(self) -> int | None:
        """Maximum number of tokens of the model; None if it is not limited."""
        config = self.model.config
        return config.n_positions if config.positions == "learned" else None

    def tensor(self, ids: Sequence[int]) -> Tensor:
        return torch.tensor([ids], device=self.model.embed.weight.device)


def open_readers(
    folders: Sequence[Path], checkpoint: Literal["best", "final"] = "best", device: str = "auto"
) -> list[Reader]:
    """Loads one run, or two to compare."""
    from ..runs import Run

    if not 1 <= len(folders) <= 2:
        raise CoupledQKError(f"{len(folders)} runs given: name one run folder, or two to compare them, or use --sample")
    runs = [Run.open(folder) for folder in folders]
    candidates = (
        [variant_name(run.config) for run in runs],
        [folder.resolve().name for folder in folders],
        [str(folder) for folder in folders],
    )
    names = next((names for names in candidates if len(set(names)) == len(runs) > 1), candidates[1])
    return [
        Reader(name, variant_name(run.config), checkpoint, run.model(checkpoint, device), run.tokenizer())
        for name, run in zip(names, runs, strict=True)
    ]


def make_bundle(readers: Sequence[Reader], text: str, cut: bool = False) -> dict[str, Any]:
    """Makes the bundle of a text. `cut` truncates a text that is too long."""
    ids = _encode(readers, text)
    limit = _limit(readers, len(ids[0]), cut)
    pieces = _common_pieces(readers, ids)[:limit]
    return {
        "format": "coupledqk explorer",
        "version": VERSION,
        "tokens": [piece.decode("utf-8", "backslashreplace") for piece in pieces],
        "cut_from": len(ids[0]) if len(ids[0]) > limit else None,
        "runs": [_describe(reader, own[:limit]) for reader, own in zip(readers, ids, strict=True)],
    }


def make_effects(readers: Sequence[Reader], text: str, cut: bool = False) -> list[dict[str, Any] | None]:
    """For each run, the effects of interventions on the loss (`analysis.LossEffects`); None for a text of one token."""
    ids = _encode(readers, text)
    limit = _limit(readers, len(ids[0]), cut)
    return [
        asdict(loss_effects(reader.model, reader.tensor(own[:limit]))) if len(own[:limit]) > 1 else None
        for reader, own in zip(readers, ids, strict=True)
    ]


def _encode(readers: Sequence[Reader], text: str) -> list[list[int]]:
    text = text.encode(
        "utf-8", "replace"
    ).decode()  # a command-line argument that is not UTF-8 contains lone surrogates
    if not text:
        raise CoupledQKError("the text is empty: give at least one character")
    return [reader.tokenizer.encode(text) for reader in readers]


def _limit(readers: Sequence[Reader], n_tokens: int, cut: bool) -> int:
    positions = [reader.positions for reader in readers if reader.positions is not None]
    limit = min([MOST_TOKENS, *positions])
    if n_tokens > limit and not cut:
        bound = f"the model has {limit} positions" if limit in positions else f"the page shows {limit} at most"
        raise CoupledQKError(
            f"the text has {n_tokens:,} tokens and {bound}: shorten it, or keep its beginning with --cut"
        )
    return limit


def _common_pieces(readers: Sequence[Reader], ids: Sequence[Sequence[int]]) -> list[bytes]:
    pieces = [[r.tokenizer.tokens[token] for token in own] for r, own in zip(readers, ids, strict=True)]
    if any(own != pieces[0] for own in pieces):
        said = ", ".join(f"{r.name}: {len(own)} by {r.tokenizer.name}" for r, own in zip(readers, ids, strict=True))
        raise CoupledQKError(
            f"the runs split the text into different tokens ({said}), so their maps cannot be compared: explore one at a time"
        )
    return pieces[0]


@torch.no_grad()
def _describe(reader: Reader, ids: Sequence[int]) -> dict[str, Any]:
    attention = reader.model.config.attention
    with record(reader.model) as tape:
        reader.model.hidden(reader.tensor(ids))
    maps = torch.stack([layer.patterns()[:, 0] for layer in tape.layers], dim=1).cpu()  # (n + 1, L, H, T, T)
    if not bool(maps.isfinite().all()):
        raise CoupledQKError(
            f"the attention of {reader.name} is not finite: did the run diverge? Try another checkpoint"
        )
    n_steps, n_layers, n_heads = len(maps) - 1, *maps.shape[1:3]
    map_steps = list(range(n_steps + 1)) if maps.numel() <= MOST_WEIGHTS else sorted({0, n_steps})
    return {
        "name": reader.name,
        "variant": reader.variant,
        "checkpoint": reader.checkpoint,
        "n_layers": n_layers,
        "n_heads": n_heads,
        "causal": attention.causal,
        "signed": bool((maps < 0).any()),
        "n_steps": n_steps,
        "map_steps": map_steps,
        "maps": pack(weight_codes(maps[map_steps])),
        "changed": _rounded((maps[-1] - maps[0]).abs().sum(-1).mean(-1) / 2) if n_steps else None,
        "step_size": _step_sizes(tape, n_heads),
        "tour": [asdict(stop) for stop in find_stops(maps, ids, attention.causal)],
        "motion": _motion(tape, n_heads) if n_steps else None,
    }


def _motion(tape: Tape, n_heads: int) -> dict[str, Any]:
    states = [states_of(layer) for layer in tape.layers]
    planes = [plane_paths(q, k) for q, k in states]
    points = torch.stack([points for points, _ in planes])  # (L, parts · H, T, n + 1, 4)
    held = torch.stack([held for _, held in planes])
    numbers = torch.stack([motion_numbers(q, k) for q, k in states])
    scale = points.abs().amax((2, 3, 4)).clamp(min=1e-30) / 32_767
    return {
        "parts": points.shape[1] // n_heads,
        "points": pack(scaled_codes(points, scale[..., None, None, None])),
        "scale": scale.tolist(),
        "held": pack(scaled_codes(held, torch.tensor(1e-4))),
        "numbers": pack(scaled_codes(numbers, torch.tensor(UNITS))),
    }


def _step_sizes(tape: Tape, n_heads: int) -> list[list[float]] | None:
    """The step size dt of each head's key head; for differential heads, that of the first sub-head."""
    layers = []
    for layer in tape.layers:
        if not isinstance(layer.attention.dynamics, Dynamics):
            return None
        dt = torch.as_tensor(layer.integrator.step_size).expand(layer.k.shape[2])
        n_kv_heads = layer.k.shape[2] * n_heads * layer.attention.queries // layer.q.shape[2]
        layers.append(dt[:n_kv_heads].repeat_interleave(n_heads // n_kv_heads))
    return _rounded(torch.stack(layers))


def _rounded(values: Tensor) -> list[list[float]]:
    return [[round(value, 4) for value in row] for row in values.tolist()]
