"""The flag --sample, for commands that use trained runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import CoupledQKError


@dataclass(frozen=True, kw_only=True)
class WithSample:
    """A command that can use the trained models that come with the package."""

    sample: bool = False
    """Use the trained models that come with the package instead of run folders."""

    def folders(self, given: Sequence[Path], names: Sequence[str] = ("standard", "hamiltonian")) -> tuple[Path, ...]:
        """The given run folders, or with --sample those of the sample models with these names."""
        if not self.sample:
            return tuple(given)
        if given:
            raise CoupledQKError(f"{' '.join(map(str, given))} --sample: give run folders or --sample, not both")
        from ..samples import sample

        return tuple(sample(name).path for name in names)
