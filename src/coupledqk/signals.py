"""Handling of Ctrl-C, SIGTERM and SIGHUP. Torch-free.

Training stops after the current micro-batch and saves a checkpoint; commands with nothing to save end immediately. Files are
replaced atomically, so a process can be killed at any time without losing saved data.
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
"""Seconds after a signal until a process with nothing to save is ended, even if it is blocked in a library's C code."""
EXIT_CODE = 130
SHOW_CURSOR = b"\033[?25h"


class _Stopping:
    """The state shared by the signal handlers and the thread that ends the process."""

    asked = False
    """Whether training was asked to stop and is about to save; set by the signal handler in the main thread."""
    seen = False
    """Whether a first signal arrived during training; set by the thread that ends the process."""
    trains = False
    """Whether training is running, so that the first signal only requests a stop."""
    advice = "stopped"
    """The last message printed before the process ends."""
    terminals: tuple[int, ...] = ()
    """File descriptors of standard output and standard error that were terminals at the start."""


_state = _Stopping()


@contextlib.contextmanager
def stop_on_signals() -> Iterator[Callable[[], bool]]:
    """Yields a function that returns whether a signal has arrived. A second signal raises KeyboardInterrupt immediately.

    Python delivers signals to the main thread only; in other threads this context does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return

    def ask(number: int, frame: FrameType | None) -> None:
        _on_hangup(number)
        if _state.asked or not _state.trains:
            raise KeyboardInterrupt
        _state.asked = True
        _say("\nstopping after this step and saving; press Ctrl-C again to stop immediately")

    _state.asked = _state.seen = False
    try:
        with _handled(ask), _something_to_save(True):
            yield lambda: _state.asked
    finally:
        _state.asked = False


@contextlib.contextmanager
def nothing_to_save() -> Iterator[None]:
    """Within `stop_on_signals`, makes the first signal raise KeyboardInterrupt, for example while data are prepared."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with _something_to_save(False):
        if _state.asked:
            raise KeyboardInterrupt
        yield


def advise(text: str) -> None:
    """Sets the message to print if a signal ends the program, such as how to resume."""
    _state.advice = text


@contextlib.contextmanager
def end_on_signals() -> Iterator[None]:
    """Ends the program on a signal with one line of output, exit code 130 and a visible cursor.

    KeyboardInterrupt is raised in the block. If the block has not ended after `GRACE_SECONDS`, because a library call does not
    return, the process is ended. During training, this time starts with the second signal.
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
            # Some libraries convert an interrupt during their import into another exception.
            if not (came.is_set() or isinstance(error, KeyboardInterrupt)):
                raise
            _say(_state.advice)
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
            os._exit(EXIT_CODE)  # skips atexit handlers, which would wait for threads of pools


def _end_soon(number: int) -> None:
    """Called in another thread for each signal, even while the main thread is in a library call."""
    if _state.trains and not _state.seen:
        _state.seen = True
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
    """Sets the handler of all three signals, except that SIGHUP remains ignored under nohup."""
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
    """Calls a function from another thread as soon as a signal arrives."""
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
    """Redirects output to /dev/null after SIGHUP, since writing to a closed terminal would fail."""
    if number == signal.SIGHUP:
        for fd in _state.terminals:
            os.dup2(os.open(os.devnull, os.O_WRONLY), fd)


def _say(text: str) -> None:
    """Writes to the file descriptor directly, since a signal handler may interrupt `print`."""
    with contextlib.suppress(OSError):
        os.write(2, f"{text}\n".encode())
