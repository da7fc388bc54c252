"""Checks the version of transformers, and silences its progress bars and log messages."""

import contextlib
import importlib.metadata
from collections.abc import Iterator

from ..errors import CoupledQKError

OLDEST = (5, 15)
BEFORE = (6, 0)


def require_transformers() -> None:
    """Raises an error unless a version of transformers is installed with which `coupledqk.hf` is tested."""
    try:
        version = importlib.metadata.version("transformers")
    except importlib.metadata.PackageNotFoundError:
        raise CoupledQKError("transformers is not installed: pip install 'coupledqk[hf]'") from None
    from packaging.version import Version  # transformers depends on it

    if not OLDEST <= Version(version).release[:2] < BEFORE:
        raise CoupledQKError(
            f"transformers {version} is installed, but coupledqk.hf needs at least {OLDEST[0]}.{OLDEST[1]} and below "
            f"{BEFORE[0]}: pip install 'coupledqk[hf]'"
        )


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silences transformers' progress bars and log messages, for commands that report progress themselves."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
