"""The models to time (contenders), and the settings they share."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from ..config import ModelConfig
from ..costs import has_fast_dynamics
from ..dynamics import IMPLEMENTATIONS, set_impl
from ..errors import unknown
from ..model import TransformerLM
from ..registry import DYNAMICS
from ..schema import change, check_fields, require
from ..training.loop import AUTOCAST
from ..variants import preset
from .peers import TWINS, Peer, find_peer

BASELINE = "standard"

Batch = tuple[Tensor, Tensor]
"""Inputs and targets, (batch, seq_len) each."""


@dataclass(frozen=True)
class Setup:
    """The settings that all contenders share."""

    batch: int
    seq_len: int
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Autocast dtype for matrix products; weights are float32."""
    device: str = "cpu"
    threads: int = 1

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("batch", "seq_len", "threads"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")

    def autocast(self) -> AbstractContextManager[Any]:
        enabled = self.precision != "fp32"
        return torch.autocast(torch.device(self.device).type, AUTOCAST[self.precision], enabled=enabled)

    def random_batch(self, vocab_size: int) -> Batch:
        """A batch of random tokens, the same on every call."""
        generator = torch.Generator().manual_seed(0)
        tokens = torch.randint(vocab_size, (self.batch, self.seq_len + 1), generator=generator).to(self.device)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


@dataclass(frozen=True)
class Contender:
    """A variant of ours or a peer, described by plain values from which another process can build the same model."""

    name: str
    config: ModelConfig
    """The model's configuration; for a peer, that of the variant with the same matrix products."""
    impl: str = "auto"
    """Implementation of the dynamics."""
    peer: str | None = None
    compiled: bool = False
    """Whether the model is compiled by torch.compile before it is timed."""
    int8: bool = False
    """Whether the weight matrices are quantized to 8 bits; for our models in decoding only."""

    @property
    def label(self) -> str:
        """The name, followed by the number of integration steps if the dynamics have steps."""
        return self.name if self.n_steps is None else f"{self.name} (n = {self.n_steps})"

    @property
    def n_steps(self) -> int | None:
        """Number of integration steps, for dynamics that have steps."""
        dynamics = self.config.attention.dynamics
        return dynamics.n_steps if "n_steps" in DYNAMICS[dynamics.method].settings else None

    def build(self, device: str) -> "TimedModel":
        """Builds a module that maps (tokens, targets) to the mean loss and has a method `greedy(prompt, max_new_tokens)`."""
        if self.peer is not None:
            return find_peer(self.peer)(self.config).to(device)
        model = Ours(self.config).to(device)
        set_impl(model, self.impl)
        if self.int8:
            model.to_int8()
        return model


class Ours(TransformerLM):
    def greedy(self, prompt: Tensor, max_new_tokens: int) -> Tensor:
        return self.generate(prompt, max_new_tokens, temperature=0.0)


TimedModel = Ours | Peer


def our_contenders(
    size: str, variants: Sequence[str], impls: Sequence[str] = ("auto",), n_steps: Sequence[int] = (), **shape: Any
) -> list[Contender]:
    """The baseline and the variants, one contender for each value of `n_steps` and `impls` that applies to the dynamics."""
    for impl in impls:
        if impl not in IMPLEMENTATIONS:
            raise unknown("impl", impl, IMPLEMENTATIONS)
    contenders = []
    for name in dict.fromkeys([BASELINE, *variants]):
        plain = Contender(name, preset(size, name, **shape))
        steps = n_steps if plain.n_steps else ()
        for config in [change(plain.config, {"n_steps": n}) for n in steps] or [plain.config]:
            for impl in impls if has_fast_dynamics(config.attention) else ["auto"]:
                contenders.append(Contender(name if impl == "auto" else f"{name} ({impl})", config, impl))
    return contenders


def peer_contenders(size: str, peers: Sequence[str], **shape: Any) -> list[Contender]:
    for name in peers:
        find_peer(name)
    return [Contender(name, preset(size, TWINS[name], **shape), peer=name) for name in dict.fromkeys(peers)]
