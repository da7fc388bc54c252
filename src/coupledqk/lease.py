"""A lease on a folder: at most one process at a time writes to it, even on network disks without file locks. Torch-free.

A lease is a numbered file in a separate folder; the file with the highest number is the current lease. It contains the name of
the process that holds it and a counter, which that process increments every few seconds. Once the holder has released the
lease, has exited, or has not incremented its counter for EXPIRY_SECONDS, another process can acquire the lease by creating the
file with the next number with O_EXCL, which succeeds for exactly one process. The waiting process measures this time itself, so
clocks of two machines are never compared. Numbers are never reused: a holder that was replaced, for example because it was
suspended, finds a higher number.
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
"""Time to wait for a holder on this machine, since a process that is being killed holds its lease for a moment longer."""
POLL_SECONDS = 0.1
SIZE = 512
"""Size of a lease in bytes. A lease is written in one call, so that readers never see a part of it."""


class HeldLeaseError(CoupledQKError):
    """Another process holds the lease."""


class LostLeaseError(HeldLeaseError):
    """Another process has taken over the lease that this process held."""


class Lease:
    """A lease held by this process. While the context is open, a thread increments its counter."""

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
        """Raises if the lease is lost. The disk is read only if the last heartbeat is late."""
        if self.lost or _clock() - self.last_beat > 2 * HEARTBEAT_SECONDS:
            self.verify()

    def verify(self) -> None:
        """Reads the disk and raises if the lease is lost."""
        if self.lost or not self._is_newest():
            self.lost = True
            raise LostLeaseError(
                f"another process has taken over {self.path.parent.parent}, since this one had no heartbeat for "
                f"{EXPIRY_SECONDS:.0f} s: it stops here and writes nothing more"
            )

    def beat(self) -> None:
        """Increments the counter."""
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
        """Overwrites the file. It is never created here, since the process that takes over the lease removes it."""
        descriptor = os.open(self.path, os.O_WRONLY)
        try:
            os.write(descriptor, _encoded(content))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def acquire(folder: Path) -> Lease | None:
    """Acquires the lease of a folder; None if another process holds it.

    If the holder is on another machine, this takes until its next heartbeat, or EXPIRY_SECONDS if there is none.
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
    """Waits until the lease of a folder is free and acquires it."""
    while (lease := acquire(folder)) is None:
        time.sleep(POLL_SECONDS)
    return lease


def is_held(folder: Path) -> bool:
    """Whether a process holds the lease, without waiting for a heartbeat.

    If the holder is on another machine, the time of its last heartbeat is that of the file, by clocks that may differ. This
    is accurate enough for display; `acquire` does not rely on it.
    """
    number, content = _newest(folder)
    state = _state(content)
    if state != "unknown":
        return state == "held"
    try:
        return time.time() - _path(folder, number).stat().st_mtime < 2 * EXPIRY_SECONDS
    except OSError:
        return True  # the file has just been replaced


def _create(folder: Path, number: int) -> Lease | None:
    """The lease with this number; None if another process holds it or a later one."""
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
    if max(numbers, default=0) > number:  # later leases were created after this one was found to be free
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
    """Number and content of the current lease; number 0 and the content of a released lease if there is none."""
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
    """The state of a lease; "unknown" if the holder is on another machine or has not written its name yet."""
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
    """Identifies the scope in which process ids are unique: host, boot and, in containers, the PID namespace."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)


def _this_process() -> dict[str, Any]:
    return {"pid": os.getpid(), "started": _process_start(os.getpid())}


def _process_start(pid: int) -> str | None:
    """The start time of a process on this machine; empty if the system does not provide it, None if there is no process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] in "ZX" else fields[19]  # a zombie has exited
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
    """Time in seconds, including the time in which the machine was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()
