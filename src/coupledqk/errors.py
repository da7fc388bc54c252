"""Errors meant for the user: what was given, what was expected, what to do."""

import difflib
from collections.abc import Iterable


class CoupledQKError(ValueError):
    """A mistake in the input, not in the program. The command line prints it as one line and exits with code 2.

    What is quoted from files and names may hold anything: line ends and other control characters are written as escapes.
    """

    def __init__(self, message: str) -> None:
        escaped = (c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in message)
        super().__init__("".join(escaped))


class DivergedError(CoupledQKError):
    """A training run whose loss or gradient has failed."""


def unknown(kind: str, given: object, choices: Iterable[str]) -> CoupledQKError:
    """The error for a name that is not one of `choices`, with the nearest one suggested."""
    choices = list(choices)
    near = difflib.get_close_matches(str(given), choices, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return CoupledQKError(f"unknown {kind} {given!r}: {hint}choose from {', '.join(choices)}")
