"""Handling of Ctrl-C, SIGTERM and SIGHUP. Torch-free.

A training stops after the current micro-batch and saves; whatever has nothing to save ends at once. Files are replaced
atomically, so a process may end at any instant without losing what was saved.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
GRACE_SECONDS = 2.0
"""Time that a command has to end after a signal when there is nothing to save, for instance inside a library's C code."""
EXIT_CODE = 130
SHOW_CURSOR = b"\033[?25h"


class _Stopping:
    """The state of this process, which the handlers of signals and the thread that ends the process share."""

    asked = False
    """Whether a training was asked to stop and is about to save, as the main thread knows it."""
    heard = False
    """The same, as the thread knows it that ends the process."""
    trains = False
    """Whether there is something to save, so that the first signal only asks."""
    advice = "stopped"
    """What is printed last."""
    terminals: tuple[int, ...] = ()
    """Of standard output and standard error, those that were terminals in the beginning."""


_state = _Stopping()


@contextlib.contextmanager
def stop_on_signals() -> Iterator[Callable[[], bool]]:
    """Yields a function that says whether to stop: a signal has come. A second one raises KeyboardInterrupt at once.

    Python delivers signals to the main thread only; in another thread this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return

    def ask(number: int, frame: FrameType | None) -> None:
        _on_hangup(number)
        if _state.asked or not _state.trains:
            raise KeyboardInterrupt
        _state.asked = True
        _say("\nstopping after this step and saving; Ctrl-C again stops at once")

    _state.asked = _state.heard = False
    try:
        with _handled(ask), _something_to_save(True):
            yield lambda: _state.asked
    finally:
        _state.asked = False


@contextlib.contextmanager
def nothing_to_save() -> Iterator[None]:
    """Inside of `stop_on_signals`: for a while, such as when data are prepared, the first signal raises KeyboardInterrupt."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with _something_to_save(False):
        if _state.asked:
            raise KeyboardInterrupt
        yield


def advise(text: str) -> None:
    """Sets what the program says if a signal ends it: how to resume what it was doing."""
    _state.advice = text


@contextlib.contextmanager
def end_on_signals() -> Iterator[None]:
    """For a whole program: a signal ends it in one line, with exit code 130, and with a visible cursor.

    The block gets KeyboardInterrupt. If it has not ended some seconds later, because it is inside a library that does not
    return, the process ends nevertheless. In a training, that time begins with the second signal.
    """
    came = threading.Event()
    _state.terminals = tuple(fd for fd in (1, 2) if os.isatty(fd))

    def interrupt(number: int, frame: FrameType | None) -> None:
        came.set()
        _on_hangup(number)
        raise KeyboardInterrupt

    with _handled(interrupt, after=signal.SIG_DFL), _woken(_end_soon):
        try:
            yield
        except SystemExit:
            raise
        except BaseException as error:
            # libraries turn an interrupt during their import into errors of other classes
            if not (came.is_set() or isinstance(error, KeyboardInterrupt)):
                raise
            _say(_state.advice)
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
            os._exit(EXIT_CODE)  # what atexit would wait for, such as the threads of a pool, has nothing left to save


def _end_soon(number: int) -> None:
    """Called in another thread for each signal, even while the main thread is inside a library."""
    if _state.trains and not _state.heard:
        _state.heard = True
        return
    timer = threading.Timer(GRACE_SECONDS, _end_now)
    timer.daemon = True
    timer.start()


def _end_now() -> None:
    if 2 in _state.terminals:
        os.write(2, SHOW_CURSOR)
    _say(_state.advice)
    os._exit(EXIT_CODE)


@contextlib.contextmanager
def _handled(handler: Callable[[int, FrameType | None], None], after: signal.Handlers | None = None) -> Iterator[None]:
    """Sets the handler of all three signals; a program under nohup, which ignores SIGHUP, goes on doing so."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    handled = [n for n in SIGNALS if not (n == signal.SIGHUP and before[n] is signal.SIG_IGN)]
    for number in handled:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, before[number] if after is None else after)


@contextlib.contextmanager
def _something_to_save(trains: bool) -> Iterator[None]:
    before, _state.trains = _state.trains, trains
    try:
        yield
    finally:
        _state.trains = before


@contextlib.contextmanager
def _woken(on_signal: Callable[[int], None]) -> Iterator[None]:
    """Calls a function from another thread for each signal, as soon as it comes."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)

    def listen() -> None:
        while number := os.read(reading, 1):
            if number[0] in SIGNALS:
                on_signal(number[0])

    threading.Thread(target=listen, daemon=True).start()
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(writing)


def _on_hangup(number: int) -> None:
    """The terminal has gone: what is still printed to it goes nowhere, rather than failing."""
    if number == signal.SIGHUP:
        for fd in _state.terminals:
            os.dup2(os.open(os.devnull, os.O_WRONLY), fd)


def _say(text: str) -> None:
    """By the file descriptor: a handler may run while `print` is at work."""
    with contextlib.suppress(OSError):
        os.write(2, f"{text}\n".encode())
