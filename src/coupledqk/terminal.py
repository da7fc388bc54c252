"""Output on a terminal: tables, paragraphs and progress bars. Torch-free."""

import contextlib
import importlib.util
import os
import shutil
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest
from types import TracebackType
from typing import Any, Self, TypeVar

GAP = "  "
BAR_WIDTH = 20
UNBROKEN = 24
"""Maximum length of cells that are never broken into lines."""

Item = TypeVar("Item")


def line_width() -> int | None:
    """Width of the terminal; None if standard output is a file or a pipe, for which nothing is wrapped or omitted."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def wrapped(text: str, width: int | None = None) -> str:
    """The text with lines broken at spaces to fit the terminal, or `width`. Longer words are not broken."""
    width = width or line_width()
    if width is None:
        return text
    return "\n".join("\n".join(_broken(line, width)) for line in text.split("\n"))


def table(head: Sequence[str], rows: Sequence[Sequence[str]], width: int | None = None) -> str:
    """A table whose first column is left-aligned and whose other columns are right-aligned.

    If it is wider than the terminal (or `width`), headings and long cells are broken at spaces. If that is not enough, the
    last columns are omitted and listed below.
    """
    columns = list(zip(head, *rows, strict=True))
    widths = _column_widths(columns, width or line_width())
    prose = [any(len(cell) > width for cell in cells) for (_, *cells), width in zip(columns, widths, strict=False)]

    def lines(cells: Sequence[str]) -> Iterator[str]:
        broken = [_broken(cell, width) for cell, width in zip(cells, widths, strict=False)]
        for parts in zip_longest(*broken, fillvalue=""):
            aligned = (
                part.ljust(width) if i == 0 or prose[i] else part.rjust(width)
                for i, (part, width) in enumerate(zip(parts, widths, strict=True))
            )
            yield GAP.join(aligned).rstrip()

    rule = GAP.join("─" * width for width in widths)
    left_out = [name for name in head[len(widths) :] if name]
    note = ["", wrapped(f"Not shown at this width: {', '.join(left_out)}.", width)] if left_out else []
    return "\n".join([*lines(head), rule, *(line for row in rows for line in lines(row)), *note])


def _column_widths(columns: Sequence[Sequence[str]], limit: int | None) -> list[int]:
    """Widths of the columns that are shown. The widest columns are made narrower if needed, as far as words allow."""
    widths = [max(map(len, column)) for column in columns]
    if limit is None:
        return widths
    least = [
        max([_unbreakable(name, 0), *(_unbreakable(cell, UNBROKEN) for cell in cells)]) for name, *cells in columns
    ]
    while len(least) > 1 and _total(least) > limit:
        least.pop()
    widths = widths[: len(least)]
    while _total(widths) > limit and widths != least:
        widest = max(range(len(widths)), key=lambda i: (widths[i] > least[i], widths[i]))
        widths[widest] -= 1
    return widths


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _unbreakable(cell: str, short: int) -> int:
    """The minimum width of a cell. A cell of at most `short` characters stays on one line."""
    return len(cell) if len(cell) <= short else max(short, *map(len, cell.split(" ")))


def _broken(line: str, width: int) -> list[str]:
    indent = line[: len(line) - len(line.lstrip())]
    options = {"subsequent_indent": indent, "break_long_words": False, "break_on_hyphens": False}
    return textwrap.wrap(line, width, **options) or [""]


def duration(seconds: float) -> str:
    """Formats a duration, such as 45 s, 12 min, 3.5 h or 6.2 days."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"


class Bars:
    """Progress bars on a terminal or in a notebook, and occasional lines elsewhere, on standard error.

    It is a context manager that always stops the bars and restores the cursor.
    """

    def __init__(self, seconds_between_lines: float = 10.0) -> None:
        self.seconds_between_lines, self.next_line = seconds_between_lines, 0.0
        self.rich: Any = _rich_progress() if _can_draw() else None
        self.labels: dict[int, tuple[str, int | None]] = {}

    def __enter__(self) -> Self:
        if self.rich is not None:
            self.rich.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.rich is not None:
            self.rich.stop()

    @property
    def drawn(self) -> bool:
        """Whether there are bars; otherwise `update` prints lines."""
        return self.rich is not None

    def add(self, label: str, total: int | None, done: int = 0) -> int:
        """Adds a bar and returns its number for the other methods. Without a total, the bar shows only activity."""
        if self.rich is not None:
            number = self.rich.add_task(label, total=total, completed=done, count="", text="")
        else:
            number = max(self.labels, default=-1) + 1
        self.labels[number] = label, total
        return number

    def update(self, bar: int, done: int, *parts: str) -> None:
        """Sets the progress of a bar. `parts` are further texts, the most important first; those that do not fit are
        omitted."""
        label, total = self.labels[bar]
        count = "" if total is None else f"{done}/{total}"
        if self.rich is not None:
            room = self.rich.console.width - len(f"{_short(label, self.rich.console.width)} {count}  ") - BAR_WIDTH
            self.rich.update(
                bar,
                description=_short(label, self.rich.console.width),
                completed=done,
                count=count,
                text=_fitting(parts, room),
            )
        elif time.monotonic() >= self.next_line:
            self.next_line = time.monotonic() + self.seconds_between_lines
            self.say(GAP.join(part for part in (label, count, *parts) if part))

    def remove(self, bar: int) -> None:
        del self.labels[bar]
        if self.rich is not None:
            self.rich.remove_task(bar)

    def say(self, *lines: str) -> None:
        """Prints lines above the bars."""
        for line in lines:
            if self.rich is not None:
                self.rich.console.print(line, highlight=False, markup=False)
            else:
                print(line, file=sys.stderr, flush=True)


def _can_draw() -> bool:
    in_notebook = "ipykernel" in sys.modules and importlib.util.find_spec("ipywidgets") is not None
    return sys.stderr.isatty() or in_notebook


def _rich_progress() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = [
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=BAR_WIDTH),
        TextColumn("{task.fields[count]}"),
        TextColumn("{task.fields[text]}", markup=False),
    ]
    return Progress(*columns, console=Console(stderr=True))


def _short(label: str, width: int) -> str:
    """The label, truncated to a third of the line."""
    return label if len(label) <= width // 3 else f"{label[: width // 3 - 1]}…"


def _fitting(parts: Iterable[str], room: int) -> str:
    text = ""
    for part in filter(None, parts):
        longer = f"{text}{GAP}{part}" if text else part
        if len(longer) > room:
            break
        text = longer
    return text


def tracked(items: Iterable[Item], label: str, total: int) -> Iterator[Item]:
    """The same items, with a progress bar while they are consumed."""
    with Bars() as bars:
        bar = bars.add(label, total)
        for done, item in enumerate(items, 1):
            yield item
            bars.update(bar, done)


@contextlib.contextmanager
def status(text: str) -> Iterator[None]:
    """Shows a line on standard error while the block runs, if it is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    print(text, end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        print("\r\033[K", end="", file=sys.stderr, flush=True)


@contextlib.contextmanager
def tokenizing() -> Iterator[Callable[[int], None]]:
    """Yields a function to call with the number of bytes tokenized so far. Nothing is shown if it is never called."""
    with Bars() as bars:
        bar: int | None = None

        def on_bytes(done: int) -> None:
            nonlocal bar
            if bar is None:
                bar = bars.add("tokenizing", total=None)
            bars.update(bar, done, f"{done / 1e6:,.1f} MB")

        yield on_bytes
        if bar is not None:
            bars.remove(bar)


def is_first_process() -> bool:
    """Whether this process reports to the user. Only one of the processes that torchrun starts together does."""
    return os.environ.get("RANK", "0") == "0"


@contextlib.contextmanager
def announced(message: str, after: float = 5.0) -> Iterator[None]:
    """Prints a line to standard error if the block takes longer than `after` seconds."""
    timer = threading.Timer(after, lambda: print(message, file=sys.stderr, flush=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
