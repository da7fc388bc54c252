"""Parameter counts of all variants at one size, compared with those of the paper."""

from dataclasses import dataclass

from ..errors import unknown
from ..published import PARAMETERS, agrees
from ..variants import PAPER_VARIANTS, PRESETS, VARIANTS, preset


@dataclass(frozen=True)
class ParameterRow:
    variant: str
    parameters: int
    over_standard: int
    """Difference from the standard variant."""
    overhead: float
    """Difference from the standard variant as a fraction of its parameters."""
    in_paper: bool
    paper: str | None
    """The paper's count, as printed there."""
    agrees: bool | None
    """Whether our count rounds to the paper's."""


def parameter_table(size: str = "small", vocab_size: int = 50_257, n_positions: int = 2048) -> list[ParameterRow]:
    """One row per variant."""
    from ..costs import count_parameters

    if size not in PRESETS:
        raise unknown("preset", size, PRESETS)
    shape = {"vocab_size": vocab_size, "n_positions": n_positions}
    counts = {name: count_parameters(preset(size, name, **shape)) for name in VARIANTS}
    published = PARAMETERS.get(size, {})
    return [
        ParameterRow(
            variant=name,
            parameters=count,
            over_standard=count - counts["standard"],
            overhead=count / counts["standard"] - 1,
            in_paper=name in PAPER_VARIANTS,
            paper=published.get(name),
            agrees=agrees(count, published[name]) if name in published else None,
        )
        for name, count in counts.items()
    ]
