"""Errors for the user. Each message states what was given, what was expected and what to do."""

import difflib
from collections.abc import Iterable


class CoupledQKError(ValueError):
    """An error in the user's input. The command line prints it as one line and exits with code 2.

    Messages may quote file contents and names, so line ends and other control characters are escaped.
    """

    def __init__(self, message: str) -> None:
        escaped = (c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in message)
        super().__init__("".join(escaped))


class DivergedError(CoupledQKError):
    """Training diverged: the loss or the gradient is not finite."""


def unknown(kind: str, given: object, choices: Iterable[str]) -> CoupledQKError:
    """The error for a name that is not one of `choices`. It suggests the closest one."""
    choices = list(choices)
    near = difflib.get_close_matches(str(given), choices, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return CoupledQKError(f"unknown {kind} {given!r}: {hint}choose from {', '.join(choices)}")
