"""torch.compile for our models and peers: the whole model with static shapes, in the default mode."""

import math
import time

import torch
from torch import Tensor

from ..errors import CoupledQKError
from ..training.compilation import first_line, keep_many_models
from .check import TOLERANCE, errors
from .contenders import Batch, Contender, Setup, TimedModel

BACKEND = "inductor"


class NotCompiledError(Exception):
    """torch.compile failed on a model; the message is the reason in one line."""


def compile_model(contender: Contender, model: TimedModel, batch: Batch, setup: Setup, check: bool) -> float:
    """Compiles a model in place. Returns the seconds of its first forward and backward pass, including compilation.

    With `check`, the loss and gradients are compared with those of the uncompiled model.
    """
    expected = loss_and_gradients(model, batch, setup) if check else None
    keep_many_models()
    model.compile(dynamic=False, backend=BACKEND)
    start = time.perf_counter()
    try:
        given = loss_and_gradients(model, batch, setup)
    except Exception as error:  # backends raise exceptions of many types
        raise NotCompiledError(first_line(error)) from error
    seconds = time.perf_counter() - start
    if expected is not None:
        require_equal(contender.name, given, expected, 10 * TOLERANCE[setup.precision])
    return seconds


def loss_and_gradients(model: TimedModel, batch: Batch, setup: Setup) -> dict[str, Tensor]:
    """The mean loss, and the gradients of all weights as one vector."""
    with setup.autocast():
        loss = model(*batch)
    loss.backward()
    found = [p.grad.detach().flatten().to("cpu", torch.float64) for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    return {"the loss": loss.detach().reshape(1).to("cpu", torch.float64), "the gradient": torch.cat(found)}


def require_equal(name: str, given: dict[str, Tensor], expected: dict[str, Tensor], limit: float) -> None:
    for kind, error in errors(given, expected).items():
        if not (math.isfinite(error) and error <= limit):
            raise CoupledQKError(
                f"{name} fails its numerics check: after compilation, {kind} differs by {error:.1e} (allowed: {limit:.1e}); no "
                "speed is reported for it. Leave it out, and report the failure as a bug"
            )
