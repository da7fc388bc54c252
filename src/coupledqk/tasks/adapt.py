"""Adapting a trained language model to other text."""

from collections.abc import Callable
from typing import Self

from ..config import AdaptConfig, RunConfig
from ..errors import CoupledQKError
from ..model import TransformerLM
from .lm import LanguageModelling
from .lora import add_lora
from .models import new_model


class Adapting(LanguageModelling):
    """Language modelling that starts from a trained run, uses its tokenizer and may train only some of the weights."""

    @classmethod
    def open(cls, config: RunConfig, on_bytes: Callable[[int], None] | None = None) -> Self:
        task = _adaptation(config)
        if "coupling" in task.method and config.model.attention.dynamics.method == "none":
            raise CoupledQKError(
                f"task.method={task.method!r} trains the dynamics, but the model has none: choose a variant such as "
                "hamiltonian, with gate=true"
            )
        return super().open(config, on_bytes)

    def build_model(self) -> TransformerLM:
        task, model = _adaptation(self.config), new_model(self.config)
        if task.method == "full":
            return model
        model.requires_grad_(False)
        if "lora" in task.method:
            add_lora(model, task.rank, self.config.seed)
        if "coupling" in task.method:
            for block in model.blocks:
                block.get_submodule("attn.dynamics").requires_grad_(True)
        return model


def _adaptation(config: RunConfig) -> AdaptConfig:
    assert isinstance(config.task, AdaptConfig)
    return config.task
