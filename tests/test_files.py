"""What is on disk after a write: all of the new or all of the old, whatever happens in between."""

import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from coupledqk import CoupledQKError
from coupledqk.files import atomic_path, sha256, write_atomic


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "file"


def test_a_write_replaces_the_content_and_leaves_nothing_else(path):
    write_atomic(path, "old")
    write_atomic(path, b"n\xc3\xa9w")
    assert path.read_text("utf-8") == "néw"
    assert os.listdir(path.parent) == ["file"]


def test_a_write_that_fails_midway_leaves_the_old_content(path):
    def fail() -> None:
        with atomic_path(path) as temporary:
            temporary.write_text("half of the ne")
            raise RuntimeError("power cut")

    write_atomic(path, "old")
    with pytest.raises(RuntimeError):
        fail()
    assert path.read_text() == "old"
    assert os.listdir(path.parent) == ["file"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_is_said_with_path_and_space_and_harms_nothing(path):
    def fill() -> None:
        with atomic_path(path) as temporary:
            temporary.symlink_to("/dev/full")
            temporary.write_text("new")

    write_atomic(path, "old")
    with pytest.raises(CoupledQKError, match=rf"no space left to write {path} \([\d.]+ MB free"):
        fill()
    assert path.read_text() == "old"
    assert os.listdir(path.parent) == ["file"]


def test_a_killed_writer_leaves_one_of_the_contents_whole(path):
    contents = [letter * 1_000_000 for letter in "ab"]
    code = f"""
from coupledqk.files import write_atomic
while True:
    for letter in "ab":
        write_atomic({str(path)!r}, letter * 1_000_000)
"""
    for delay in (0.0, 0.013, 0.05):
        writer = subprocess.Popen([sys.executable, "-c", code])
        while not path.exists():
            time.sleep(0.001)
        time.sleep(delay)
        writer.kill()
        writer.wait()
        assert path.read_text() in contents


def test_a_folder_appears_whole_or_not_at_all(path):
    def write(parts: int) -> None:
        with atomic_path(path) as temporary:
            (temporary / "nested").mkdir(parents=True)
            for part in range(parts):
                (temporary / "nested" / str(1 / (1 - part))).write_text("content")
            assert not path.exists()

    with pytest.raises(ZeroDivisionError):
        write(2)
    assert os.listdir(path.parent) == []
    write(1)
    assert (path / "nested" / "1.0").read_text() == "content"
    assert os.listdir(path.parent) == ["file"]


@pytest.mark.parametrize("when", ["before", "meanwhile", "at the last moment"])
def test_a_folder_that_another_process_made_stays(path, when, monkeypatch):
    def other() -> None:
        path.mkdir(parents=True, exist_ok=True)
        (path / "theirs").write_text("first")

    def write() -> None:
        with atomic_path(path) as temporary:
            temporary.mkdir()
            if when == "meanwhile":
                other()

    if when == "before":
        other()
    if when == "at the last moment":
        replace = os.replace
        monkeypatch.setattr(os, "replace", lambda *paths: (other(), replace(*paths)))
    with pytest.raises(FileExistsError):
        write()
    assert os.listdir(path) == ["theirs"]
    assert os.listdir(path.parent) == ["file"]


def test_the_checksum_is_the_usual_one(path):
    write_atomic(path, b"abc" * 100_000)
    assert sha256(path) == hashlib.sha256(b"abc" * 100_000).hexdigest()
