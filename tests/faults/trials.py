"""The possible outcomes of a trial of the harness, and their counts.

A trial is fine if what was damaged is reported in one line, repaired, or without effect. It has failed if a published value
changed silently, if something was lost, or if an exception was raised that is not meant for the user.
"""

import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from coupledqk.errors import CoupledQKError

FINE = ("reported", "repaired", "without effect")
FAILED = ("silent", "lost", "traceback")


@dataclass
class Tally:
    """The outcomes of many trials."""

    ends: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    """A description of each trial that failed, with its traceback."""
    figures: dict[str, Any] = field(default_factory=dict)
    """Other measurements."""

    @property
    def tried(self) -> int:
        return sum(self.ends.values())

    @property
    def failed(self) -> int:
        return sum(self.ends[end] for end in FAILED)

    def count(self, what: str, trial: Callable[..., str], *args: Any) -> str:
        """Runs a trial, which returns its outcome or raises."""
        try:
            end = trial(*args)
        except CoupledQKError as error:
            end = "reported"
            if not str(error).strip() or len(str(error).splitlines()) != 1:
                end = "traceback"
                self.failures.append(f"{what}: the message is not one line: {error!r}")
        except Exception:
            end = "traceback"
            self.failures.append(f"{what}\n{traceback.format_exc()}")
        else:
            if end in FAILED:
                self.failures.append(f"{what}: {end}")
        self.ends[end] += 1
        return end

    def add(self, other: "Tally") -> None:
        self.ends += other.ends
        self.failures += other.failures
        self.figures |= other.figures
