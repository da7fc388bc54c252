"""Command lines generated from the registry of commands and the schema of settings, run in this process.

Nothing is trained: a line counts as accepted when the main work of its command would begin. Every line ends with exit code 0, 1
or 2 and, unless it is 0, with a one-line reason; anything else is a failure with its traceback.
"""

import contextlib
import dataclasses
import io
import random
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from samples import Samples
from trials import Tally

from coupledqk import cli
from coupledqk.cli.settings import WithSettings
from coupledqk.recipes import RECIPES
from coupledqk.schema import leaves, type_of
from coupledqk.variants import PRESETS, VARIANTS

NUMBERS = (
    "0", "1", "2", "3", "-1", "7", "16", "1e3", "0.5", "1e-3", "-0.0", "inf", "-inf", "nan", "1e308", "1e400", "100000000",
    "99999999999999999999", "9" * 5000, "0x10", "1_000", "٣", "³", "1,5", "-9223372036854775809",
)  # fmt: skip
TEXTS = (
    "", " ", "-", "--", "x", "None", "null", "true", "false", "é", "\n", "\udcff", "..", "/dev/null", "nowhere",
    "a" * 300,
    "~", "*", "{}", "[]", "%s", "bytes", "bpe:300", "bpe:", "bpe:99999999999999", "gpt2", "0-3", "3-0", "0-99999999999",
    "cpu", "cuda:99", "meta", "127.0.0.1", "999.1.1.1",
)  # fmt: skip
KNOWN = (*VARIANTS, *RECIPES, *PRESETS)
WORK = (
    "coupledqk.runs.train", "coupledqk.lab.laboratory.run_plans", "coupledqk.lab.compare.Comparison.open",
    "coupledqk.data.shards.open_text", "coupledqk.data.shards.verify", "coupledqk.cli.bench.Bench.measure",
    "coupledqk.dynamics.triton.compile_report", "coupledqk.runs.Run.generate", "coupledqk.runs.Run.evaluate",
    "coupledqk.explore.bundle.open_readers", "coupledqk.cli.analyze.Analyze.measure", "coupledqk.hf.export.export_run",
    "coupledqk.hf.export.import_run", "coupledqk.hf.harness.run_harness", "coupledqk.doctor.examine",
    "coupledqk.report.watch_server.WatchServer.serve_until_interrupted", "coupledqk.planning.plans.plan_run",
    "coupledqk.planning.plans.plan_experiment", "coupledqk.cli.params.parameter_table",
)  # fmt: skip
"""Functions with which the main work of commands begins."""


class AcceptedError(Exception):
    """The command line was accepted, and its work would begin."""


def lines(samples: Samples, seed: int, count: int) -> Iterator[list[str]]:
    """Random command lines. The same seed gives the same ones."""
    files = [
        str(path) for path in (samples.folder, samples.finished.path, samples.stopped.path, samples.folder / "text.txt")
    ]
    for number in range(count):
        draw = random.Random(f"{seed} {number}")
        name = draw.choice(cli.WORDS)
        command = cli.COMMANDS[name]
        kinds = typing.get_type_hints(command)
        words = [name]
        fields = list(dataclasses.fields(command))
        for field in fields:
            required = field.default is field.default_factory is dataclasses.MISSING
            if required and draw.random() < 0.9:
                words.append(value(draw, kinds[field.name], files))
        flags = {field.name: kinds[field.name] for field in fields if field.default is not dataclasses.MISSING}
        if issubclass(command, WithSettings):
            config = RECIPES["nano"]
            flags |= {path: type_of(config, path) for path in draw.sample(list(leaves(config)), 4)}
        for flag in draw.sample(list(flags), min(len(flags), draw.choice((0, 1, 1, 2, 3, 6)))):
            word = f"--{draw.choice((flag, flag.rpartition('.')[2])).replace('_', draw.choice('-_'))}"
            given = [value(draw, flags[flag], files)] if flags[flag] is not bool or draw.random() < 0.1 else []
            words += [f"{word}={given[0]}"] if given and draw.random() < 0.3 else [word, *given]
        if draw.random() < 0.1:
            words.insert(draw.randrange(len(words) + 1), draw.choice((*TEXTS, "--help", "--lr", "-o", "--x")))
        yield words


def value(draw: random.Random, kind: Any, files: list[str]) -> str:
    """A random value, usually of the expected type."""
    choices = [str(each) for each in _literals(kind)]
    if draw.random() < 0.15:
        return draw.choice((*NUMBERS, *TEXTS))
    if choices:
        return draw.choice(choices)
    parts = {kind, *typing.get_args(kind)}
    if parts & {int, float}:
        return draw.choice(NUMBERS)
    if Path in parts:
        return draw.choice((*files, *TEXTS))
    return draw.choice((*KNOWN, *TEXTS, *files))


def _literals(kind: Any) -> list[Any]:
    if typing.get_origin(kind) is typing.Literal:
        return list(typing.get_args(kind))
    return [choice for part in typing.get_args(kind) for choice in _literals(part)]


def end_of(words: list[str]) -> str:
    """Runs a command line and returns the outcome of the trial."""
    errors = io.StringIO()
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
            cli.main(words)
    except AcceptedError:
        return "without effect"
    except SystemExit as end:
        if end.code in (0, None):
            return "without effect"
        said = errors.getvalue().rstrip("\n")
        if end.code not in (1, 2) or not said:
            raise AssertionError(f"exit code {end.code}, standard error {said!r}") from None
        # tyro's own messages about flags have several lines and name --help
        if "\n" in said and f"coupledqk {words[0]} --help" not in said:
            raise AssertionError(f"more than one line: {said}") from None
        return "reported"
    return "without effect"


def fuzz_command_lines(samples: Samples, count: int, seed: int = 0) -> Tally:
    tally = Tally()
    with contextlib.ExitStack() as stack:
        folder = samples.folder / "elsewhere"
        folder.mkdir(exist_ok=True)
        stack.enter_context(contextlib.chdir(folder))
        stack.enter_context(mock.patch("sys.stdin", io.StringIO("text")))
        for place in WORK:
            stack.enter_context(mock.patch(place, side_effect=AcceptedError))
        for words in lines(samples, seed, count):
            tally.count(" ".join(map(repr, words))[:500], lambda words=words: end_of(words))
    return tally
