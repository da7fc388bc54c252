"""A lease on a folder: at most one process at a time writes there, also on network disks without file locks. Torch-free.

A lease is a numbered file in a folder of its own; the one with the highest number counts. It names the process that holds it
and contains a counter, which that process increases every few seconds. Whoever wants the lease creates the next number with
O_EXCL, which succeeds for exactly one process, once the present holder has released it, has died, or has not moved its
counter for EXPIRY_SECONDS. The process that waits measures this time itself, so clocks of two machines are never compared.
Numbers are never used again: a holder that was replaced, for example because it was suspended, finds a higher one.
"""

import contextlib
import json
import os
import secrets
import socket
import threading
import time
from functools import cache
from pathlib import Path
from typing import Any, Literal, Self

from .errors import CoupledQKError

HEARTBEAT_SECONDS = 5.0
EXPIRY_SECONDS = 60.0
PATIENCE_SECONDS = 0.5
"""A process that is being killed holds its lease for an instant longer."""
POLL_SECONDS = 0.1
SIZE = 512
"""Bytes of a lease. All are written at once, so that no reader sees a part."""


class HeldLeaseError(CoupledQKError):
    """Another process holds the lease."""


class LostLeaseError(HeldLeaseError):
    """Another process holds the lease now, which was this process' before."""


class Lease:
    """A lease that this process holds. While the context is open, a thread increases its counter."""

    def __init__(self, folder: Path, number: int) -> None:
        self.path, self.number = folder / f"{number:07d}", number
        self.owner = {"token": secrets.token_hex(8), "machine": machine(), **_this_process()}
        self.beats, self.last_beat, self.lost = 0, _clock(), False
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._beat_until_ended, daemon=True, name=f"lease {folder.parent.name}")

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.ended.set()
        self.thread.join()
        with contextlib.suppress(OSError):  # a lease that cannot be released expires
            self._write({"released": True})

    def check(self) -> None:
        """Raises if the lease is lost. The disk is asked only if the last heartbeat is late."""
        if self.lost or _clock() - self.last_beat > 2 * HEARTBEAT_SECONDS:
            self.verify()

    def verify(self) -> None:
        """Raises if the lease is lost, as the disk says now."""
        if self.lost or not self._is_newest():
            self.lost = True
            raise LostLeaseError(
                f"another process has taken over {self.path.parent.parent}, since this one had shown no sign of life for "
                f"{EXPIRY_SECONDS:.0f} s: it stops here and writes nothing more"
            )

    def beat(self) -> None:
        """Increases the counter."""
        if not self._is_newest():
            self.lost = True
            return
        self.beats += 1
        self._write({**self.owner, "beat": self.beats})
        self.last_beat = _clock()

    def _beat_until_ended(self) -> None:
        while not self.ended.wait(HEARTBEAT_SECONDS) and not self.lost:
            with contextlib.suppress(OSError):  # the disk may be reachable again at the next heartbeat
                self.beat()

    def _is_newest(self) -> bool:
        return _highest(self.path.parent) == self.number

    def _write(self, content: dict[str, Any]) -> None:
        """Never creates the file: whoever takes over removes it."""
        descriptor = os.open(self.path, os.O_WRONLY)
        try:
            os.write(descriptor, _encoded(content))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def acquire(folder: Path) -> Lease | None:
    """The lease of a folder, or None if another process holds it.

    If the holder is on another machine this takes until its next heartbeat, or EXPIRY_SECONDS if there is none.
    """
    _make(folder)
    began = time.monotonic()
    before: tuple[int, bytes] | None = None
    while True:
        now = _newest(folder)
        number, content = now
        state = _state(content)
        if before is not None and now != before and state == "unknown":
            return None  # a heartbeat
        if state == "held" and time.monotonic() - began > PATIENCE_SECONDS:
            return None
        if state == "free" or (state == "unknown" and time.monotonic() - began > EXPIRY_SECONDS):
            lease = _create(folder, number + 1)
            if lease is not None:
                return lease
            began, before = time.monotonic(), None
            continue
        before = now
        time.sleep(POLL_SECONDS)


def wait_for(folder: Path) -> Lease:
    """The lease of a folder, as soon as it is free."""
    while (lease := acquire(folder)) is None:
        time.sleep(POLL_SECONDS)
    return lease


def is_held(folder: Path) -> bool:
    """Whether a process holds the lease, without waiting for a heartbeat.

    If the holder is on another machine, the time of its last heartbeat is read from the file, by clocks that may differ: this
    is good enough to be shown, and `acquire` does not rely on it.
    """
    number, content = _newest(folder)
    state = _state(content)
    if state != "unknown":
        return state == "held"
    try:
        return time.time() - _path(folder, number).stat().st_mtime < 2 * EXPIRY_SECONDS
    except OSError:
        return True  # replaced in this instant


def _create(folder: Path, number: int) -> Lease | None:
    """The lease of this number, unless another process has it or a higher one."""
    lease = Lease(folder, number)
    try:
        descriptor = os.open(lease.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    except FileExistsError:
        return None
    try:
        os.write(descriptor, _encoded({**lease.owner, "beat": 0}))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    numbers = _numbers(folder)
    if max(numbers, default=0) > number:  # it was free when this process looked, some leases ago
        lease.path.unlink(missing_ok=True)
        return None
    for older in numbers:
        if older < number:
            _path(folder, older).unlink(missing_ok=True)
    return lease


def _make(folder: Path) -> None:
    if folder.is_file():  # the lock file of an earlier version
        with contextlib.suppress(OSError):  # another process has just replaced it by a folder
            folder.unlink()
    folder.mkdir(parents=True, exist_ok=True)


def _newest(folder: Path) -> tuple[int, bytes]:
    """Number and content of the lease that counts; number 0 and one that is released if there is none."""
    while True:
        number = _highest(folder)
        if number == 0:
            return 0, _encoded({"released": True})
        try:
            return number, _path(folder, number).read_bytes()
        except FileNotFoundError:
            time.sleep(POLL_SECONDS / 10)  # a newer one has replaced it
        except PermissionError:
            return number, b""


def _state(content: bytes) -> Literal["free", "held", "unknown"]:
    """unknown: the holder is on another machine, or has not written its name yet."""
    try:
        found = json.loads(content)
        if not isinstance(found, dict):
            return "unknown"
        if found.get("released"):
            return "free"
        if found["machine"] != machine():
            return "unknown"
        started = _process_start(found["pid"])
        if started is None:
            return "free"
        if not started:
            return "unknown"
        return "held" if started == found["started"] else "free"
    except (ValueError, KeyError, RecursionError):
        return "unknown"


def _encoded(content: dict[str, Any]) -> bytes:
    return json.dumps(content).encode().ljust(SIZE)


def _highest(folder: Path) -> int:
    return max(_numbers(folder), default=0)


def _numbers(folder: Path) -> list[int]:
    try:
        return [int(name) for name in os.listdir(folder) if name.isdecimal()]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _path(folder: Path, number: int) -> Path:
    return folder / f"{number:07d}"


@cache
def machine() -> str:
    """The scope in which a process number means one process: host, boot and, in containers, their own numbering."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)


def _this_process() -> dict[str, Any]:
    return {"pid": os.getpid(), "started": _process_start(os.getpid())}


def _process_start(pid: int) -> str | None:
    """When a process of this machine was started; empty if the system does not say, None if there is no such process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] in "ZX" else fields[19]  # a zombie has ended
    except OSError:
        if Path("/proc/self/stat").exists():
            return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return ""


def _clock() -> float:
    """Seconds, including those in which the machine was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()
