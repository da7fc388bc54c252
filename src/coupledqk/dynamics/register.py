"""Registers dynamics defined by users."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .. import registry
from ..config import DynamicsConfig
from ..errors import CoupledQKError
from ..initial import with_own_initial
from ..plugins import add, loading, remove
from .evolve import evolve
from .forces import MLPForce
from .method import Method, Run
from .methods import METHODS
from .module import build_dynamics

# A sample of grouped queries: (B, T, H_kv, G, d) and (B, T, H_kv, 1, d), as passed to a method.
B, T, KEY_HEADS, GROUP, WIDTH = 2, 3, 2, 2, 8


def register_dynamics(
    name: str, method: Run | Callable[[int, int], nn.Module] | Method, settings: tuple[str, ...] | None = None
) -> None:
    """Makes your own dynamics available as `DynamicsConfig(method=name)`.

    `method` is a function (q, k, dt, force, n_steps) -> (q, k) of tensors (..., d), which gets the force, the learned step
    sizes and every setting of the built-in methods; or a module class or factory (width, n_key_heads) -> module with
    forward(q, k) -> (q, k), where q is (B, T, H, d) and k (B, T, H_kv, d); or a `Method` record, which can also define an
    inverse and the moves for the fused implementation. `settings` lists the settings of `DynamicsConfig` that a module uses.

    The dynamics are first tested on a small random example: the result must be finite, have the shapes of q and k, and for
    each token depend on its own q and k only.
    """
    record = method if isinstance(method, Method) else _record(name, method)
    if settings is None:
        settings = () if record.run is None else registry.DynamicsEntry.settings
    add(registry.DYNAMICS, name, registry.DynamicsEntry(record, settings, loading()), "dynamics")
    add(METHODS, name, record, "dynamics")
    try:
        _try_out(name, record)
    except BaseException:
        remove(name, registry.DYNAMICS, METHODS)
        raise


def _record(name: str, method: Any) -> Method:
    if not isinstance(method, type) and _takes(method, 5):
        return Method(run=method)
    if _takes(method, 2):
        return Method(build=lambda config, width, n_kv_heads: with_own_initial(lambda: method(width, n_kv_heads)))
    raise CoupledQKError(
        f"dynamics {name!r} is {method!r}: expected a function (q, k, dt, force, n_steps) -> (q, k), or a module class or "
        "factory (width, n_key_heads) -> module"
    )


def _takes(function: Any, n: int) -> bool:
    try:
        inspect.signature(function).bind(*range(n))
    except (TypeError, ValueError):
        return False
    return True


@torch.no_grad()
def _try_out(name: str, record: Method) -> None:
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(B, T, KEY_HEADS, GROUP, WIDTH, generator=generator)
    k = torch.randn(B, T, KEY_HEADS, 1, WIDTH, generator=generator)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if (run := record.run) is not None:
            dt, force = torch.full((KEY_HEADS, 1, 1), 0.1), _mean_of(MLPForce(WIDTH, 0.2))
            move: Callable[..., Any] = partial(_called, name, lambda q, k: run(q, k, dt, force, 2))
        else:
            q, k = q.flatten(2, 3), k.flatten(2, 3)
            module = _called(name, build_dynamics, DynamicsConfig(method=name), WIDTH, KEY_HEADS)
            move = partial(_called, name, module)
        _check_moved(name, move(q, k), q, k)
        _check_local(name, move, q, k)
    if record.moves is not None:
        force, q, k = MLPForce(WIDTH, 0.2), q.flatten(2, 3), k.flatten(2, 3)
        fused, plain = (evolve(q, k, 0.1, force, 2, name, impl=impl) for impl in ("fused", "reference"))
        if not all(torch.allclose(a, b, atol=1e-4) for a, b in zip(fused, plain, strict=True)):
            raise CoupledQKError(f"dynamics {name!r}: its moves and its function disagree on a small example")


def _mean_of(force: MLPForce) -> Callable[[Tensor], Tensor]:
    return lambda x: force(x).mean(-2, keepdim=True)


def _called(name: str, function: Any, *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except CoupledQKError:
        raise
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise CoupledQKError(
            f"dynamics {name!r} failed on a small example: {type(error).__name__}: {reason}"
        ) from error


def _check_local(name: str, move: Callable[..., Any], q: Tensor, k: Tensor) -> None:
    """Raises if a token moves differently because another token has changed: it could then depend on later tokens."""
    for changed in (0, T - 1):
        outputs = []
        for shift in (0.0, 1.0):
            shifted = q.clone(), k.clone()
            for x in shifted:
                x[:, changed] += shift
            torch.manual_seed(0)  # dynamics may be random
            outputs.append(move(*shifted))
        others = [t for t in range(T) if t != changed]
        if not all(torch.allclose(a[:, others], b[:, others], atol=1e-6) for a, b in zip(*outputs, strict=True)):
            raise CoupledQKError(
                f"dynamics {name!r} moves a token differently if another token changes: expected dynamics of each token alone, "
                "because others could leak later tokens into the prediction"
            )


def _check_moved(name: str, moved: Any, q: Tensor, k: Tensor) -> None:
    if not (isinstance(moved, tuple) and len(moved) == 2 and all(isinstance(x, Tensor) for x in moved)):
        raise CoupledQKError(f"dynamics {name!r} returned {type(moved).__name__}: expected the pair (q, k) of tensors")
    for letter, new, old in zip("qk", moved, (q, k), strict=True):
        if new.shape != old.shape:
            raise CoupledQKError(
                f"dynamics {name!r} returned {letter} of shape {tuple(new.shape)}: expected that of its input, "
                f"{tuple(old.shape)} (two queries share a key here, as in grouped-query attention)"
            )
        if not bool(new.isfinite().all()):
            raise CoupledQKError(f"dynamics {name!r} returned {letter} with values that are not finite")
