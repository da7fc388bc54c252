"""Atomic writes: after any failure a file has either the new or the old content."""

import errno
import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from coupledqk import CoupledQKError
from coupledqk.files import (
    FileError,
    atomic_path,
    read_bytes,
    read_json,
    read_text,
    read_toml,
    remove_leftovers,
    sha256,
    temporary_name,
    write_atomic,
)


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
def test_a_full_disk_is_reported_with_path_and_space_and_damages_nothing(path):
    def fill() -> None:
        with atomic_path(path) as temporary:
            temporary.symlink_to("/dev/full")
            temporary.write_text("new")

    write_atomic(path, "old")
    with pytest.raises(CoupledQKError, match=rf"no space left to write {path} \([\d.]+ MB free"):
        fill()
    assert path.read_text() == "old"
    assert os.listdir(path.parent) == ["file"]


def test_a_killed_writer_leaves_either_the_old_or_the_new_content(path):
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


def test_a_folder_is_created_completely_or_not_at_all(path):
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
def test_a_folder_that_another_process_created_is_kept(path, when, monkeypatch):
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


def test_the_checksum_equals_that_of_hashlib(path):
    write_atomic(path, b"abc" * 100_000)
    assert sha256(path) == hashlib.sha256(b"abc" * 100_000).hexdigest()


def code(number: int) -> Callable[..., None]:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (errno.ENOSPC, "no space left to write .*free some space"),
        (errno.EDQUOT, "no space left to write"),
        (errno.EACCES, "no permission to write .*choose another path"),
        (errno.EROFS, "read-only; choose another folder"),
        (errno.EMFILE, "too many files are open; raise the limit"),
        (errno.ENOMEM, "out of memory"),
        (errno.EFBIG, "larger than allowed"),
        (errno.EIO, "check the disk"),
        (errno.EPROTO, "protocol error"),
    ],
)
@pytest.mark.parametrize("operation", ["replace", "fsync"])
def test_system_errors_are_reported_in_one_line_and_the_old_content_is_kept(path, monkeypatch, operation, number, says):
    write_atomic(path, "old")
    with monkeypatch.context() as patch:
        patch.setattr(os, operation, code(number))
        with pytest.raises(FileError, match=says) as raised:
            write_atomic(path, "new")
    assert "\n" not in str(raised.value)
    assert path.read_text() == "old"
    assert os.listdir(path.parent) == ["file"]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("a" * 300, "the name is too long"),
        ("file/below", "there is a file where a folder is expected"),
        ("folder", "a folder"),
        ("nul\0", "this is not a valid file name"),
        ("\ud800", "this is not a valid file name"),
        ("circle/x", "choose another path"),
    ],
)
def test_places_where_nothing_can_be_written_or_read_are_refused_in_one_line(tmp_path, name, says):
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "content").write_text("x")
    (tmp_path / "circle").symlink_to("circle")
    with pytest.raises(FileError, match=says) as raised:
        write_atomic(tmp_path / name, "content")
    assert "\n" not in str(raised.value)
    with pytest.raises(FileError):
        read_text(tmp_path / name)
    assert sorted(os.listdir(tmp_path)) == ["circle", "file", "folder"]
    with pytest.raises(FileError, match="folder"):
        write_atomic("/", "content")


def test_a_long_name_that_the_system_allows_is_written(tmp_path):
    write_atomic(tmp_path / ("n" * 255), "content")
    assert read_text(tmp_path / ("n" * 255)) == "content"


def test_text_that_is_not_utf_8_or_too_large_or_not_a_file_is_refused(tmp_path):
    (tmp_path / "text").write_bytes(b"one\ntwo \xff")
    with pytest.raises(FileError, match=r"byte 8 \(line 2\) is not UTF-8"):
        read_text(tmp_path / "text")
    with pytest.raises(FileError, match="more than 5 bytes"):
        read_bytes(tmp_path / "text", largest=5)
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(FileError, match="not a regular file"):
        read_bytes(tmp_path / "fifo")


@pytest.mark.parametrize("text", ["", "[" * 100_000, "[" * 60 + "]" * 60, "9" * 5000, '{"a": 1e5', "9" * 40, "nul"])
def test_json_of_any_kind_is_read_or_refused_in_one_line(tmp_path, text):
    (tmp_path / "data.json").write_text(text)
    with pytest.raises(FileError, match=r"is damaged \(not JSON: .*\): restore it") as raised:
        read_json(tmp_path / "data.json", "restore it")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("text", ["a = " + "[" * 10_000, "a = 0x" + "f" * 5000, "a = 1\na = 2", "a = " + "9" * 5000])
def test_toml_of_any_kind_is_read_or_refused_in_one_line(tmp_path, text):
    (tmp_path / "data.toml").write_text(text)
    with pytest.raises(FileError, match="not a TOML configuration"):
        read_toml(tmp_path / "data.toml")


def test_a_byte_order_mark_at_the_beginning_of_a_toml_file_is_ignored(tmp_path):
    (tmp_path / "data.toml").write_bytes(b"\xef\xbb\xbfa = 1\n")
    assert read_toml(tmp_path / "data.toml") == {"a": 1}


def test_temporary_files_of_dead_processes_are_removed_and_those_of_others_kept(path):
    begin = f"""
import os
from pathlib import Path
from coupledqk.files import temporary_name
path = Path({str(path)!r})
path.parent.mkdir()
"""
    leave = """
temporary_name(path).write_text("a half")
temporary_name(path.with_name("other")).mkdir()
os._exit(9)
"""
    subprocess.run([sys.executable, "-c", begin + leave], check=False)
    ours = temporary_name(path)
    ours.write_text("still being written")
    elsewhere = path.parent / ".file.00000000-1-00000000.tmp"  # written on another machine
    elsewhere.write_text("still being written")
    assert len(os.listdir(path.parent)) == 4
    write_atomic(path, "whole")
    assert len(os.listdir(path.parent)) == 4  # the temporary file of the dead process was removed
    remove_leftovers(path.parent)
    assert sorted(os.listdir(path.parent)) == sorted([ours.name, elsewhere.name, "file"])


def test_replacing_a_folder_never_leaves_it_missing(path, monkeypatch):
    def write(content: str) -> None:
        with atomic_path(path, replace=True) as temporary:
            temporary.mkdir()
            (temporary / "content").write_text(content)

    def found() -> set[str]:
        return {(each / "content").read_text() for each in path.parent.glob("file*")}

    write("old")
    replace, seen = os.replace, []
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", lambda *names: (seen.append(found()), replace(*names), seen.append(found())))
        write("new")
    assert all(seen)
    assert found() == {"new"}
    assert os.listdir(path.parent) == ["file"]
    monkeypatch.setattr(os, "fsync", code(errno.EIO))
    with pytest.raises(FileError):
        write("newer")
    assert found() == {"new"}
