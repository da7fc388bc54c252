"""Every setting of a run as a flag: `--lr 3e-4`, `--n_steps 1`, `--train.precision bf16`, `--compile`."""

import functools
from dataclasses import dataclass
from pathlib import Path

from ..config import RunConfig, tokenizer_size
from ..errors import CoupledQKError
from ..files import FileError, read_toml
from ..recipes import RECIPES, recipe
from ..schema import change, from_dict, leaves, parse_flags
from .plugin import WithPlugin


@dataclass(frozen=True)
class WithSettings(WithPlugin):
    """A command that builds run configurations. Flags other than its own are settings."""

    recipe: str = "nano"
    """Recipe with the initial settings: nano (minutes on a laptop), mini or mini-modern (smaller, for grids of many runs),
    mqar, mqar-mini, or the paper's for GPUs: wikitext-103, wikitext-103-medium, wikitext-103-large, openwebtext, pubmed."""
    variant: str = "standard"
    """Attention variant: standard, gqa, diff, mlp_only, euler, hamiltonian, ... (`coupledqk params` lists all)."""
    config: Path | None = None
    """TOML file with settings, which replaces --recipe and --variant."""

    def run_config(self, flags: list[str]) -> RunConfig:
        base = self._base()
        settings = parse_flags(base, flags)
        if "corpus" in settings and Path(settings["corpus"]).exists():
            settings["corpus"] = str(Path(settings["corpus"]).resolve())
        if self.config is None:
            return recipe(self.recipe, self.variant, **settings)
        if "tokenizer" in settings:
            settings = {"vocab_size": tokenizer_size(settings["tokenizer"]), **settings}
        return change(base, settings)

    def _base(self) -> RunConfig:
        if self.config is None:
            return recipe(self.recipe, self.variant)
        if self.variant != "standard" or self.recipe != "nano":
            raise CoupledQKError("--config replaces --recipe and --variant: give one or the other")
        if not self.config.is_file():
            raise CoupledQKError(
                f"{self.config}: no such file; --config takes a TOML file, such as a run's config.toml"
            )
        try:
            return from_dict(RunConfig, read_toml(self.config))
        except FileError:
            raise
        except CoupledQKError as error:
            raise CoupledQKError(f"{self.config}: {error}") from None


def settings_help() -> str:
    """All settings with their values in the nano recipe, one paragraph per part of the configuration."""
    config = RECIPES["nano"]
    parts: dict[str, list[str]] = {}
    for path in leaves(config):
        part, _, name = path.rpartition(".")
        value = functools.reduce(getattr, path.split("."), config)
        parts.setdefault(part, []).append(f"--{name.replace('_', '-')} {'' if value is None else value}".strip())
    return "\n\n".join(f"    {part or 'run'}:  {'  '.join(flags)}" for part, flags in parts.items())
