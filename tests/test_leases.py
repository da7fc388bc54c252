"""At most one process writes to a run, even if other processes fail or clocks differ."""

import itertools
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from coupledqk import lease
from coupledqk.cli import main
from coupledqk.lab.cells import make_plan
from coupledqk.lab.experiment import load
from coupledqk.lease import Lease, LostLeaseError, acquire, is_held
from coupledqk.run_folder import RunFolder

SPAWN = multiprocessing.get_context("spawn")


def held(folder: Path) -> Lease:
    found = acquire(folder)
    assert found is not None
    return found


def rewrite(found: Lease, **changes: Any) -> None:
    """Changes the content of a lease, as its holder could."""
    content = json.loads(found.path.read_bytes())
    found.path.write_bytes(json.dumps({**content, **changes}).encode().ljust(lease.SIZE))


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lease:
    """A lease held by a process on another machine, of which only the heartbeats are known."""
    monkeypatch.setattr(lease, "EXPIRY_SECONDS", 0.5)
    found = held(tmp_path / "lock")
    rewrite(found, machine="another")
    return found


def test_a_lease_is_held_until_it_is_released(tmp_path: Path) -> None:
    folder = tmp_path / "lock"
    assert not is_held(folder)
    with held(folder) as first:
        assert is_held(folder)
        assert acquire(folder) is None
        first.verify()
    assert not is_held(folder)
    with held(folder) as second:
        assert second.number > first.number
        with pytest.raises(LostLeaseError):
            first.verify()


def compete(folder: Path, rounds: int, out: Path) -> None:
    """Takes the lease repeatedly and records when it was held. Some leases are abandoned instead of released."""
    lease.POLL_SECONDS, lease.PATIENCE_SECONDS = 0.001, 0.0
    lease.EXPIRY_SECONDS = 0.05
    spans = []
    for i in range(rounds):
        while (found := acquire(folder)) is None:
            time.sleep(0.001)
        begin = time.monotonic_ns()
        inside = folder.parent / "inside"
        os.close(os.open(inside, os.O_CREAT | os.O_EXCL))  # fails if another process holds the lease, too
        inside.unlink()
        spans.append((begin, time.monotonic_ns(), found.number))
        # an abandoned lease appears to be another machine's and is taken over after it has been watched for a while
        rewrite(found, **({"machine": "lost"} if i % 4 == 0 else {"released": True}))
    out.write_text(json.dumps(spans))


def test_one_process_at_a_time_holds_the_lease_and_every_stale_lease_is_taken_over_once(tmp_path: Path) -> None:
    outs = [tmp_path / f"{i}.json" for i in range(3)]
    processes = [SPAWN.Process(target=compete, args=(tmp_path / "lock", 12, out)) for out in outs]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        assert process.exitcode == 0
    spans = sorted(tuple(span) for out in outs for span in json.loads(out.read_text()))
    assert len(spans) == 36
    assert all(end <= begin for (_, end, _), (begin, _, _) in itertools.pairwise(spans))
    numbers = [number for _, _, number in spans]
    assert numbers == sorted(set(numbers)), "each lease has a number of its own, in the order of time"


def test_a_lease_of_another_machine_is_taken_over_when_its_heartbeats_have_stopped(elsewhere: Lease) -> None:
    began = time.monotonic()
    with held(elsewhere.path.parent) as ours:
        assert time.monotonic() - began >= lease.EXPIRY_SECONDS
        ours.verify()
        with pytest.raises(LostLeaseError, match="another process has taken over"):
            elsewhere.verify()
        elsewhere.beat()
        assert elsewhere.lost
        assert not elsewhere.path.exists(), "a heartbeat of the former holder does not bring its lease back"
        ours.verify()


@pytest.mark.parametrize("skew", [-1e6, 1e6])
def test_lease_expiry_does_not_depend_on_the_clocks_of_other_machines(
    elsewhere: Lease, monkeypatch: pytest.MonkeyPatch, skew: float
) -> None:
    """A heartbeat protects a lease however old its file looks; without one it expires however new its file looks."""
    monkeypatch.setattr(lease, "EXPIRY_SECONDS", 600.0)
    naps = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 5:
            rewrite(elsewhere, machine="another", beat=7)
        os.utime(elsewhere.path, (time.time() + skew, time.time() + skew))

    with monkeypatch.context() as patch:
        patch.setattr(time, "sleep", nap)
        assert acquire(elsewhere.path.parent) is None
    assert len(naps) == 5, "a heartbeat is enough"
    assert is_held(elsewhere.path.parent) == (skew > 0), "what is shown without waiting relies on the file's time"
    monkeypatch.setattr(lease, "EXPIRY_SECONDS", 0.3)
    assert acquire(elsewhere.path.parent) is not None


def test_after_sigkill_a_lease_is_free_at_once_on_the_same_machine(tmp_path: Path) -> None:
    code = f"""
import sys, pathlib
from coupledqk.lease import acquire
with acquire(pathlib.Path({str(tmp_path / "lock")!r})):
    print("held", flush=True)
    sys.stdin.read()
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    assert is_held(tmp_path / "lock")
    assert acquire(tmp_path / "lock") is None
    process.send_signal(signal.SIGSTOP)
    assert acquire(tmp_path / "lock") is None, "a suspended process goes on later"
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # the process has exited and is a zombie
    assert not is_held(tmp_path / "lock")
    assert acquire(tmp_path / "lock") is not None
    process.communicate()


def test_a_lease_is_free_if_its_process_id_now_belongs_to_another_process(tmp_path: Path) -> None:
    first = held(tmp_path / "lock")
    rewrite(first, started="1")
    assert not is_held(tmp_path / "lock")
    assert acquire(tmp_path / "lock") is not None


def test_a_lease_without_a_holder_is_watched_before_it_is_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The holder may be about to write its name, or may have died before writing it."""
    monkeypatch.setattr(lease, "EXPIRY_SECONDS", 0.3)
    (tmp_path / "lock").mkdir()
    (tmp_path / "lock/0000001").touch()
    began = time.monotonic()
    assert held(tmp_path / "lock").number == 2
    assert time.monotonic() - began >= 0.3


def test_the_lock_file_of_an_earlier_version_is_replaced(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    (run.path / "lock").touch()
    assert run.status == "interrupted"
    with run.lock():
        assert run.status == "running"


def test_the_status_of_a_run_on_another_machine_is_read_from_its_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = make_plan(load("smoke"), "mini", tmp_path)
    run = plan.run(plan.cells[0])
    run.create(plan.cells[0].config)
    found = held(run.path / "lock")
    rewrite(found, machine="another")

    def shown() -> dict[str, str]:
        main(["reproduce", "smoke", "--status", "--out", str(tmp_path)])
        head, _, row = [line for line in capsys.readouterr().out.splitlines() if line][1:4]
        return {name: row[head.index(name) :][: len(name)].strip() for name in ("running", "interrupted")}

    assert shown() == {"running": "1", "interrupted": ""}
    long_ago = time.time() - 3 * lease.EXPIRY_SECONDS
    os.utime(found.path, (long_ago, long_ago))
    assert shown() == {"running": "", "interrupted": "1"}
