"""Compilation of models with torch.compile."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ..errors import CoupledQKError
from ..torch_internals import is_compiler_error

RECOMPILE_LIMIT = 64


def keep_many_models() -> None:
    """Raises the recompilation limit, so that a process can compile many models.

    All models of a class share one cache of compiled code. A model beyond its size limit would silently run uncompiled.
    """
    import torch.compiler.config  # loads the compiler, which takes seconds

    torch.compiler.config.recompile_limit = RECOMPILE_LIMIT


def can_compile() -> bool:
    """Whether torch.compile works on this machine. The test compiles a small function, which takes seconds."""
    try:
        torch.compile(torch.nn.functional.silu)(torch.ones(8))
    except Exception as error:
        if not is_compiler_error(error):
            raise
        return False
    return True


@contextmanager
def compiler_errors() -> Iterator[None]:
    """Converts a failure of torch.compile into a CoupledQKError of one line."""
    try:
        yield
    except Exception as error:
        if not is_compiler_error(error):
            raise
        raise CoupledQKError(
            f"the model cannot be compiled ({first_line(error)}): install a C++ compiler such as g++, or train without compile"
        ) from error


def first_line(error: Exception) -> str:
    """The reason for a failure in one line.

    PyTorch reports a back end's error in two lines: an introduction that ends with a colon, then the error itself.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = " ".join(lines[:2] if lines and lines[0].endswith(":") else lines[:1])
    return f"{type(error).__name__}: {said[:200]}"
