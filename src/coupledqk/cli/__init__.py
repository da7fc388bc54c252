"""The command line: it parses arguments, calls the library and prints results. Torch is imported only by commands that need it.

A command is a frozen dataclass with a method `run`. Its fields are its flags, and its docstring is its help text.
"""

import errno
import importlib
import inspect
import io
import os
import sys
import textwrap
from collections.abc import Sequence
from typing import Any

from .. import __version__
from ..errors import CoupledQKError, unknown
from ..files import explained
from ..plugins import load_plugin
from ..terminal import line_width, wrapped
from .plugin import WithPlugin
from .settings import WithSettings

WORDS = (
    "demo", "compare", "train", "watch", "eval", "generate", "explore", "analyze", "runs", "reproduce", "report", "mqar",
    "glue", "sweep", "export", "import", "harness", "data", "params", "plan", "bench", "doctor", "completion",
)  # fmt: skip
MODULES = {"eval": "evaluate", "import": "import_"}
"""Modules of the commands whose module has a different name."""
COMMANDS: dict[str, type[Any]] = {
    word: getattr(importlib.import_module(f".{MODULES.get(word, word)}", __name__), word.capitalize()) for word in WORDS
}

NAMED_BY_USER = (
    errno.ENAMETOOLONG, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENOTDIR, errno.EROFS, errno.ENOSPC, errno.EMFILE,
)  # fmt: skip
"""Error codes of the operating system that are caused by the path a user has given, not by the program."""


def main(arguments: Sequence[str] | None = None) -> None:
    arguments = sys.argv[1:] if arguments is None else arguments
    make_streams_writable()
    try:
        run(list(arguments))
    except CoupledQKError as error:
        fail(str(error))
    except OSError as error:
        if error.filename is not None and error.errno in NAMED_BY_USER:
            fail(str(explained(error, error.filename)))
        if error.errno == errno.ENOSPC:
            fail("the disk is full: free some space; files that were saved are intact")
        if isinstance(error, BrokenPipeError):
            # the reader has closed the pipe (`coupledqk runs | head`); Python must not print an error at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(1)
        raise


def make_streams_writable() -> None:
    """Makes any text printable: a character that the encoding of the terminal lacks is printed as "?", and a closed stream
    discards the text."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 (until the process ends)
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def run(arguments: list[str]) -> None:
    try:
        import tyro
    except ImportError as error:
        raise CoupledQKError(f"the command line needs the package tyro ({error}): pip install coupledqk") from None
    if not arguments or arguments[0] in ("-h", "--help"):
        print(overview())
        return
    if arguments[0] == "--version":
        print(__version__)
        return
    name, *rest = arguments
    if name not in COMMANDS:
        raise unknown("command", name, COMMANDS)
    command_type = COMMANDS[name]
    takes_settings = issubclass(command_type, WithSettings)
    parsed: Any = tyro.cli(
        command_type,
        prog=f"coupledqk {name}",
        description=wrapped(inspect.cleandoc(command_type.__doc__ or "")),
        args=["--out" if word == "-o" else word for word in rest],
        config=(tyro.conf.FlagCreatePairsOff, tyro.conf.PositionalRequiredArgs),
        return_unknown_args=takes_settings,
    )
    command, *flags = parsed if takes_settings else (parsed,)
    if issubclass(command_type, WithPlugin) and command.plugin is not None:
        load_plugin(command.plugin)
    command.run(*flags)


def overview() -> str:
    """Every command with its summary, broken at spaces to fit the terminal."""
    names, columns = max(map(len, COMMANDS)), line_width() or 10_000
    head = "Coupled query-key dynamics for attention: the layer, the models and the laboratory."
    usage = "usage: coupledqk COMMAND [OPTIONS]; coupledqk COMMAND --help lists the options of a command"
    fill = textwrap.TextWrapper(
        columns, subsequent_indent=" " * (names + 4), break_long_words=False, break_on_hyphens=False
    ).fill
    abouts = {name: (command.__doc__ or "").splitlines()[0] for name, command in COMMANDS.items()}
    lines = [fill(f"  {name:<{names}}  {about}") for name, about in abouts.items()]
    return "\n".join([wrapped(head), "", wrapped(usage), "", *lines])


def fail(message: str) -> None:
    print(f"coupledqk: {message}", file=sys.stderr)
    sys.exit(2)
