"""Registers scorings defined by users."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .. import registry
from ..config import ScoringConfig
from ..errors import CoupledQKError
from ..initial import with_own_initial
from ..plugins import add, loading, remove
from .record import Scoring
from .scorings import SCORINGS
from .softmax import SOFTMAX, Softmax

Weights = Callable[[Tensor, Tensor, Tensor | None, bool], Tensor]
B, T, KEY_HEADS, GROUP, WIDTH = 2, 3, 2, 2, 8


class ByWeights(Softmax):
    """A scoring defined by a function (q, k, mask, causal) -> weights (B, H, T, S). Its output is the weights times v."""

    def __init__(self, function: Weights) -> None:
        super().__init__()
        self.function = function

    def weights(
        self, q: Tensor, k: Tensor, mask: Tensor | None = None, causal: bool = False, x: Tensor | None = None
    ) -> Tensor:
        return self.function(q, k, mask, causal)

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None = None,
        causal: bool = False,
        x: Tensor | None = None,
    ) -> Tensor:
        return self.plain(q, k, v, mask, causal, x)[0]


def register_scoring(
    name: str, scoring: Weights | type[nn.Module] | Scoring, sub_heads: int = 1, queries: int = 1
) -> None:
    """Makes your own scoring available as `ScoringConfig(kind=name)`.

    `scoring` is a function (q, k, mask, causal) -> weights, with q (B, T, H, d), k (B, S, H_kv, d) and weights (B, H, T, S);
    or a class of modules, built with (n_heads, width), that derives from `coupledqk.scoring.Softmax` and defines `forward`,
    `weights` and `plain`; or a `Scoring` record, which has further properties. `sub_heads` and `queries` describe the geometry
    of a head, as in `registry.ScoringEntry`.

    The scoring is first tested on a small random example: shapes must fit, and the fast and the plain output must agree.
    """
    record = scoring if isinstance(scoring, Scoring) else _record(scoring)
    entry = registry.ScoringEntry(record, sub_heads=sub_heads, queries=queries, plugin=loading())
    add(registry.SCORINGS, name, entry, "scoring")
    add(SCORINGS, name, record, "scoring")
    try:
        _try_out(name, entry)
    except BaseException:
        remove(name, registry.SCORINGS, SCORINGS)
        raise


def _record(scoring: Any) -> Scoring:
    def build(config: ScoringConfig, n_heads: int, width: int, layer: int, eps: float) -> nn.Module:
        if isinstance(scoring, type):
            return with_own_initial(lambda: scoring(n_heads, width))
        return ByWeights(scoring)

    return Scoring(build, SOFTMAX.products)


@torch.no_grad()
def _try_out(name: str, entry: registry.ScoringEntry) -> None:
    generator = torch.Generator().manual_seed(0)
    n_heads = KEY_HEADS * GROUP
    q = torch.randn(B, T, n_heads * entry.sub_heads * entry.queries, WIDTH, generator=generator)
    k, v = torch.randn(2, B, T, KEY_HEADS * entry.sub_heads, WIDTH, generator=generator)
    x = torch.randn(B, T, n_heads * entry.sub_heads * WIDTH, generator=generator)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            module: Any = SCORINGS[name].build(ScoringConfig(kind=name), n_heads, WIDTH, 1, 1e-6)
        weights = module.weights(q, k, None, True, x)
        _check(name, "weights", weights, (B, n_heads, T, T))
        fast, (plain, _) = module(q, k, v, None, True, x), module.plain(q, k, v, None, True, x)
    except CoupledQKError:
        raise
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise CoupledQKError(f"scoring {name!r} failed on a small example: {type(error).__name__}: {reason}") from error
    _check(name, "output", fast, (B, T, n_heads, WIDTH * entry.sub_heads))
    if bool(weights.triu(1).any()):
        raise CoupledQKError(f"scoring {name!r} looks ahead: with causal=True a token must not see a later one")
    if not torch.allclose(fast, plain, rtol=1e-3, atol=1e-4):
        raise CoupledQKError(f"scoring {name!r}: `forward` and `plain` disagree on a small example")


def _check(name: str, what: str, value: Any, shape: tuple[int, ...]) -> None:
    if not isinstance(value, Tensor) or tuple(value.shape) != shape:
        given = f"of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"as {type(value).__name__}"
        raise CoupledQKError(f"scoring {name!r} gave {what} {given}: expected {shape}")
    if not bool(value.isfinite().all()):
        raise CoupledQKError(f"scoring {name!r} gave {what} with values that are not finite")
