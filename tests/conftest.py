"""Shared fixtures: one thread, seeded random numbers, poisoned memory, and small modules with non-trivial parameters."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import pytest
import torch
from hypothesis import settings
from torch import Tensor, nn

from coupledqk import Attention, TransformerLM, plugins, registry
from coupledqk.dynamics import METHODS, MLPForce, PotentialForce
from coupledqk.recipes import recipe
from coupledqk.runs import Run
from coupledqk.scoring import SCORINGS
from coupledqk.variants import VARIANTS
from small_runs import TINY_TASK, run_to

torch.set_num_threads(1)
settings.register_profile("coupledqk", deadline=None, max_examples=25, derandomize=True)
settings.load_profile("coupledqk")

Module = TypeVar("Module", bound=nn.Module)

TINY = {"d_model": 64, "n_heads": 8, "n_layers": 2, "d_ff": 48, "vocab_size": 37, "n_positions": 32}


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def poisoned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fills uninitialised floating-point memory with NaN, so that reading it before writing is detected."""

    def poisoned(make):
        def wrapper(*args, **kwargs):
            tensor = make(*args, **kwargs)
            return tensor.fill_(math.nan) if tensor.is_floating_point() else tensor

        return wrapper

    monkeypatch.setattr(torch, "empty", poisoned(torch.empty))
    monkeypatch.setattr(torch, "empty_like", poisoned(torch.empty_like))
    monkeypatch.setattr(torch.Tensor, "new_empty", poisoned(torch.Tensor.new_empty))


@pytest.fixture
def registries_restored() -> Iterator[None]:
    """Removes what a test has registered, so that other tests do not see it."""
    tables = (registry.DYNAMICS, METHODS, registry.SCORINGS, SCORINGS, VARIANTS, plugins._paths)
    before = [dict(table) for table in tables]
    yield
    for table, names in zip(tables, before, strict=True):
        table.clear()
        table.update(names)


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty token cache, separate from that of other tests and of the user."""
    monkeypatch.setenv("COUPLEDQK_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def text(tmp_path: Path, own_cache: None) -> Path:
    """A corpus of 38 training windows of 16 bytes: 20 steps of 6 cross the end of the epoch three times."""
    path = tmp_path / "text.txt"
    path.write_text("".join(f"{n} squared is {n * n}.\n" for n in range(36)))
    return path


@pytest.fixture
def source(tmp_path: Path, own_cache: None) -> Run:
    """A byte-level language model, trained for 10 steps."""
    text = tmp_path / "text.txt"
    text.write_text("".join(f"{n} squared is {n * n}.\n" for n in range(60)))
    config = recipe("mini", corpus=str(text), tokenizer="bytes", n_positions=64, seq_len=16, max_tokens=None,
                    max_valid_tokens=None, **{**TINY_TASK, "steps": 10})  # fmt: skip
    return run_to(config, tmp_path / "source")


@torch.no_grad()
def stir(module: Module) -> Module:
    """Gives every parameter a non-trivial value, in float64.

    A new module has a force of nearly 0, closed gates, identity couplings and the same step size in every head:
    most properties would hold for the wrong reason.
    """
    generator = torch.Generator().manual_seed(0)
    for parameter in module.double().parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        if parameter.ndim > 1:
            parameter.copy_(noise / math.sqrt(parameter.shape[-1]))
        else:
            parameter.add_(0.3 * noise)
    return module


def tiny_model(variant: str = "standard", **settings) -> TransformerLM:
    return stir(TransformerLM.from_preset("nano", variant, **{**TINY, **settings}))


def tiny_attention(variant: str = "standard", d_model: int = 64, n_heads: int = 8, **settings) -> Attention:
    return stir(Attention.from_variant(variant, d_model, n_heads, **settings))


def mlp_force(d: int) -> MLPForce:
    """A smooth force that is not a gradient: its Jacobian is not symmetric."""
    return stir(MLPForce(d)).requires_grad_(False)


def potential_force(d: int) -> PotentialForce:
    return stir(PotentialForce(d)).requires_grad_(False)


def random_tokens(*shape: int, vocab_size: int = TINY["vocab_size"]) -> Tensor:
    return torch.randint(vocab_size, shape)


def double_randn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory):
    """The files that the tests in faults/ damage, made once for all tests of a module."""
    from samples import make_samples

    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("samples")
        patch.setenv("COUPLEDQK_CACHE", str(folder / "cache"))
        yield make_samples(folder)
