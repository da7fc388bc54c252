"""The stops of the guided tour: the heads of a run that show best what heads do, found on the text at hand.

Each stop is the head with the highest mean share of attention on what the stop is about:

previous    the token before; mean over the tokens from the second on
induction   the token that followed an earlier occurrence of the same token; mean over tokens that occurred before
sink        the first token of the text; mean over the tokens from the third on
changed     the share of attention that the dynamics move to other tokens, as `attention_moved` measures it

A stop also says what evenly spread attention would give on this text (`even`) and what the head would give without its dynamics
(`before`), and points at the token that shows the behaviour best.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor


@dataclass(frozen=True)
class Stop:
    kind: Literal["previous", "induction", "sink", "changed"]
    layer: int
    head: int
    query: int
    """Position of the token whose row shows the behaviour best."""
    key: int | None
    """Position of the token that this row looks at, where the stop is about one."""
    share: float
    """Mean share of attention, over the tokens that the stop is about."""
    even: float | None
    """What evenly spread attention would give."""
    before: float | None
    """What this head would give without its dynamics, for a run with dynamics."""


def find_stops(maps: Tensor, tokens: Sequence[int], causal: bool = True) -> list[Stop]:
    """The stops of a run, given its maps after 0, 1, ... n steps, (n + 1, L, H, T, T)."""
    maps = maps.double()
    n_tokens = maps.shape[-1]
    visible = torch.ones(n_tokens, n_tokens, dtype=torch.float64)
    visible = visible.tril() if causal else visible
    even = visible / visible.sum(-1, keepdim=True)
    stops = [_stop(kind, maps, target, even) for kind, target in _targets(tokens).items() if bool(target.any())]
    if len(maps) > 1:
        moved = (maps[-1] - maps[0]).abs().sum(-1) / 2  # (L, H, T)
        layer, head = _argmax(moved.mean(-1))
        query = int(moved[layer, head].argmax())
        share = float(moved[layer, head].mean())
        stops.append(Stop("changed", layer, head, query, None, share, None, None))
    return stops


def _targets(tokens: Sequence[int]) -> dict[Literal["previous", "induction", "sink"], Tensor]:
    """By stop, a matrix that is True where a query (row) looks at a key (column) as the stop describes."""
    n = len(tokens)
    ids = torch.tensor(tokens)
    place = torch.arange(n)
    followed = torch.zeros(n, n, dtype=torch.bool)
    followed[:, 1:] = (ids[:, None] == ids[None, :-1]) & (place[None, :-1] + 1 < place[:, None])
    return {
        "previous": place[:, None] == place[None, :] + 1,
        "induction": followed,
        "sink": (place[None, :] == 0) & (place[:, None] > 1),
    }


def _stop(kind: Literal["previous", "induction", "sink"], maps: Tensor, target: Tensor, even: Tensor) -> Stop:
    rows = target.any(-1)
    on_target = (maps * target).sum(-1)  # (n + 1, L, H, T)
    scores = on_target[..., rows].mean(-1)
    layer, head = _argmax(scores[-1])
    query = int(on_target[-1, layer, head].masked_fill(~rows, -torch.inf).argmax())
    key = int((maps[-1, layer, head, query] * target[query]).argmax())
    before = float(scores[0, layer, head]) if len(maps) > 1 else None
    return Stop(
        kind,
        layer,
        head,
        query,
        key,
        float(scores[-1, layer, head]),
        float((even * target).sum(-1)[rows].mean()),
        before,
    )


def _argmax(by_head: Tensor) -> tuple[int, int]:
    layer, head = divmod(int(by_head.argmax()), by_head.shape[1])
    return layer, head
