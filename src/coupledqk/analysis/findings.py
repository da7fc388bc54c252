"""The surveys of several runs as plain values, for tables, figures and JSON."""

import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import CoupledQKError
from ..run_folder import RunFolder, variant_name
from ..runs import Run
from .paired import CONFIDENCE, differences
from .surveys import MEASURES, Survey


@dataclass(frozen=True)
class Surveyed:
    """The surveys of one checkpoint of a run, by context length."""

    name: str
    run: Run
    step: int
    surveys: dict[int, Survey]

    @property
    def longest(self) -> Survey:
        return self.surveys[max(self.surveys)]


def findings(surveyed: Sequence[Surveyed]) -> dict[str, Any]:
    """Means of every measure, and how each run's newest checkpoint differs from the first run's."""
    newest = {one.name: one for one in surveyed}
    first, *others = newest.values()
    measured = {name for one in surveyed for name in one.longest.values}
    return plain(
        {
            "definitions": {
                name: (inspect.getdoc(measure) or "").splitlines()[0]
                for name, measure in MEASURES.items()
                if name in measured
            },
            "runs": [_means(one) for one in surveyed],
            "differences": [
                {
                    "run": other.name,
                    "against": first.name,
                    "confidence": CONFIDENCE,
                    "measures": differences(other.longest, first.longest),
                }
                for other in others
            ],
        }
    )


def names(runs: Sequence[RunFolder]) -> list[str]:
    """The names of the run folders, or their whole paths where two names are equal."""
    short = [run.path.resolve().name for run in runs]
    if len({run.path.resolve() for run in runs}) < len(runs):
        raise CoupledQKError("a run was given twice: name each run once")
    return short if len(set(short)) == len(short) else [str(run.path) for run in runs]


def plain(value: Any) -> Any:
    """A copy with None in place of NaN and infinities, which JSON cannot represent."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _means(one: Surveyed) -> dict[str, Any]:
    return {
        "name": one.name,
        "run": str(one.run.path),
        "variant": variant_name(one.run.config),
        "seed": one.run.config.seed,
        "step": one.step,
        "lengths": {str(length): survey.summary() for length, survey in one.surveys.items()},
    }
