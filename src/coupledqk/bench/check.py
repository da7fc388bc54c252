"""Numerics checks: a model is timed only if its loss and gradients agree with the reference implementation."""

import copy
import math
import re

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..dynamics import set_impl
from ..errors import CoupledQKError
from ..loss import plain_loss
from ..model import TransformerLM
from .contenders import Contender, Setup, TimedModel

ENOUGH_TOKENS = 512
"""Number of tokens in a check. It is large enough for a model of width 128 or more to use its fused implementation."""

TOLERANCE = {"fp32": 1e-5, "bf16": 1e-2, "fp16": 2e-3}
"""Largest accepted excess of the relative error of a loss or gradient over that of the reference in the same precision."""


def check_loss(contender: Contender, model: TimedModel, setup: Setup) -> None:
    """Compares the loss and all gradients of our model with float64. For a peer, only checks that the loss is finite."""
    n_rows = max(1, ENOUGH_TOKENS // setup.seq_len)
    batch = setup.random_batch(contender.config.vocab_size)
    tokens, targets = (x[:n_rows, :ENOUGH_TOKENS].contiguous() for x in batch)
    if not isinstance(model, TransformerLM):
        with torch.no_grad(), setup.autocast():
            loss = float(model(tokens, targets))
        if not math.isfinite(loss):
            raise CoupledQKError(f"the loss of {contender.name} is {loss}: no speed is reported for it")
        return
    truth = readable_gradients(copy.deepcopy(model).to("cpu", torch.float64), tokens.cpu(), targets.cpu())
    with setup.autocast():
        given = gradients(model(tokens, targets, reduction="sum"), model)
        expected = readable_gradients(model, tokens, targets)
        set_impl(model, contender.impl)
    require_accuracy(contender.name, errors(given, truth), errors(expected, truth), TOLERANCE[setup.precision])


def readable_gradients(model: TransformerLM, tokens: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """Loss and gradients computed with the reference dynamics, unfused attention and unchunked logits."""
    set_impl(model, "reference")
    with sdpa_kernel(SDPBackend.MATH):
        return gradients(plain_loss(model.hidden(tokens), model.embed.weight, targets, "sum"), model)


def gradients(loss: Tensor, model: TransformerLM) -> dict[str, Tensor]:
    """Loss and the gradient of each kind of weight, concatenated over layers.

    The gradient of a single head can consist mostly of rounding error, so layers are not compared one by one.
    """
    names, parameters = zip(*model.named_parameters(), strict=True)
    kinds: dict[str, list[Tensor]] = {"the loss": [loss.detach().reshape(1)]}
    for name, gradient in zip(names, torch.autograd.grad(loss, parameters), strict=True):
        kinds.setdefault("the gradient of " + re.sub(r"\.\d+\.", ".", name), []).append(gradient.flatten())
    return {kind: torch.cat(parts).to("cpu", torch.float64) for kind, parts in kinds.items()}


def errors(given: dict[str, Tensor], truth: dict[str, Tensor]) -> dict[str, float]:
    """Relative errors. The error of a gradient close to 0 is relative to the norm of all gradients."""
    floor = 1e-9 * math.hypot(*(float(x.norm()) for x in truth.values()))
    return {
        kind: float((given[kind] - exact).norm()) / max(float(exact.norm()), floor) for kind, exact in truth.items()
    }


def require_accuracy(name: str, given: dict[str, float], allowed: dict[str, float], tolerance: float) -> None:
    for kind, error in given.items():
        limit = 2 * allowed[kind] + tolerance
        if not error <= limit:
            raise CoupledQKError(
                f"{name} fails its numerics check: the relative error of {kind} is {error:.1e} (allowed: {limit:.1e}); no "
                "speed is reported for it. Leave it out, and report the failure as a bug"
            )


def check_decoding(contender: Contender, model: TimedModel, prompt: Tensor, new_tokens: int, setup: Setup) -> None:
    """Checks the number of generated tokens, and for our models that the logits agree with and without the cache."""
    n_prompt = prompt.shape[1]
    with torch.no_grad(), setup.autocast():
        tokens = model.greedy(prompt, new_tokens)
        if tokens.shape[1] != n_prompt + new_tokens:
            made = tokens.shape[1] - n_prompt
            raise CoupledQKError(
                f"{contender.name} generated {made} tokens instead of {new_tokens}: no speed is reported for it"
            )
        if not isinstance(model, TransformerLM):
            return
        cache = model.new_cache(tokens.shape[1])
        steps = tokens.split([n_prompt, *new_tokens * [1]], dim=1)
        cached = torch.cat([model(step, cache=cache) for step in steps], dim=1).float()
        whole = model(tokens).float()
    error = float((cached - whole).abs().max() / whole.std())
    # Both sides are rounded and the maximum is over many logits; products with int8 weights are rounded to bfloat16.
    limit = 10 * TOLERANCE["bf16" if contender.int8 else setup.precision]
    if not error <= limit:
        raise CoupledQKError(
            f"{contender.name} fails its numerics check: with the cache, its logits differ by {error:.1e} of their spread "
            f"(allowed: {limit:.1e}); no speed is reported for it. Leave it out, and report the failure as a bug"
        )
