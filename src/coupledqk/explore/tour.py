"""The stops of the guided tour: heads of a run that show typical behaviours most clearly on the given text.

Each stop is the head with the highest mean share of attention on its target:

previous    the previous token; mean over the tokens from the second on
induction   the token that followed an earlier occurrence of the same token; mean over tokens that occurred before
sink        the first token of the text; mean over the tokens from the third on
changed     the share of attention that the dynamics move to other tokens, as `attention_moved` measures it

A stop also contains the share for uniform attention on this text (`even`), the share of the head without its dynamics
(`before`), and the token that shows the behaviour most clearly.
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
    """Position of the token whose row shows the behaviour most clearly."""
    key: int | None
    """Position of the token that this row attends to, if the target is a single token."""
    share: float
    """Mean share of attention on the target."""
    even: float | None
    """The share for uniform attention."""
    before: float | None
    """The share of this head without its dynamics; None for a run without dynamics."""


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
    """The target of each stop, as a matrix that is True where a key (column) is a target of a query (row)."""
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
