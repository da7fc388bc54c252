"""Files that contain a checksum of their content, so that damage is detected: JSON, TOML and logs. Torch-free.

    JSON    the key "checksum" of the outermost table covers all other keys
    TOML    the last line, `# checksum ...`, covers the text before it
    log     each line is a JSON table whose last key, "crc", is the CRC-32 of all lines up to and including this one, without
            their "crc" keys, so that changed, missing, repeated and reordered lines are detected

A file without a checksum, written by an earlier version, is read without verification.
"""

import json
import os
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from .errors import CoupledQKError
from .files import FileError, digest, file_errors, read_bytes, read_json, read_text, write_atomic
from .schema import parse_json

_TOML_LINE = "# checksum "
_CRC = ', "crc": "'


def write_json(path: Path, data: dict[str, Any], indent: int | None = 2) -> None:
    sealed = {**data, "checksum": digest(data)}
    write_atomic(path, json.dumps(sealed, indent=indent) + "\n")


def read_sealed_json(path: Path, advice: str) -> dict[str, Any]:
    """Reads the table in a JSON file. `advice` ends the error message for a damaged file and tells the user what to do."""
    data = read_json(path, advice)
    if not isinstance(data, dict):
        raise FileError(f"{path} is damaged (expected a table): {advice}")
    if "checksum" in data and data.pop("checksum") != digest(data):
        raise FileError(f"{path} is damaged (its checksum differs): {advice}")
    return data


def write_toml(path: Path, text: str) -> None:
    write_atomic(path, f"{text}{_TOML_LINE}{digest(text)}\n")


def read_sealed_toml(path: Path) -> str:
    """The text of a TOML file, without its checksum."""
    text, line, checksum = read_text(path).rpartition(_TOML_LINE)
    if not line:
        return checksum
    if checksum != f"{digest(text)}\n":
        raise FileError(
            f"{path} is damaged or was edited (its checksum differs): restore it; if the edit was intended, remove the last "
            "line"
        )
    return text


@dataclass(frozen=True)
class Log:
    """The content of a log up to the first damaged line."""

    records: list[dict[str, Any]]
    crc: int = 0
    """CRC of all records."""
    fault: str | None = None
    """The number of the damaged line and a description of the damage; None if there is none."""
    sealed: bool = False
    """Whether the lines contain checksums."""
    torn: bool = False
    """Whether the damaged line is the last one and incomplete: its writer was killed or is still writing."""

    @classmethod
    def read(cls, path: Path) -> Self:
        """Reads a log. A log that does not exist is empty."""
        if not path.exists():
            return cls([])
        *lines, rest = read_bytes(path, largest=1 << 30).split(b"\n")
        lines += [rest] if rest else []
        records: list[dict[str, Any]] = []
        crc, sealed = 0, False
        for number, line in enumerate(lines, 1):
            try:
                record, next_crc, has_crc = _checked(line, crc)
                if records and has_crc != sealed:
                    raise CoupledQKError(f"it has {'a' if has_crc else 'no'} checksum, unlike the line before")
            except CoupledQKError as error:
                torn = number == len(lines) and bool(rest)
                return cls(records, crc, f"{path}, line {number}, is damaged ({error})", sealed, torn)
            crc, sealed = next_crc, has_crc
            records.append(record)
        return cls(records, crc, None, sealed)


def _checked(line: bytes, crc: int) -> tuple[dict[str, Any], int, bool]:
    """The record on a line, the CRC of all lines so far, and whether the line contains a CRC."""
    try:
        text = line.decode()
    except UnicodeDecodeError:
        raise CoupledQKError("not UTF-8") from None
    record = parse_json(text)
    if not isinstance(record, dict) or type(record.get("step")) is not int:
        raise CoupledQKError("it is not a record of a step")
    found = record.pop("crc", None)
    body, mark, _ = text.rpartition(_CRC)
    crc = zlib.crc32((body + "}" if mark else text).encode(), crc)
    if found is not None and (not mark or found != f"{crc:08x}"):
        raise CoupledQKError("its checksum differs")
    return record, crc, found is not None


def log_lines(records: Iterable[dict[str, Any]], crc: int = 0) -> tuple[str, int]:
    """Formats records as lines. Also returns the CRC after them, from which the next lines continue."""
    lines = []
    for record in records:
        body = json.dumps(record)
        crc = zlib.crc32(body.encode(), crc)
        lines.append(f'{body[:-1]}{_CRC}{crc:08x}"}}\n')
    return "".join(lines), crc


class LogWriter:
    """Appends to a log. A line is passed to the operating system when it is written, and is on disk after `sync`."""

    def __init__(self, path: Path) -> None:
        self.path, self.crc = path, Log.read(path).crc
        with file_errors(path, "write"):
            self.file = path.open("ab", buffering=0)

    def write(self, record: dict[str, Any]) -> None:
        line, crc = log_lines([record], self.crc)
        with file_errors(self.path, "write"):
            left = memoryview(line.encode())
            while left:  # a write may be partial if the disk is nearly full
                left = left[self.file.write(left) :]
        self.crc = crc

    def sync(self) -> None:
        with file_errors(self.path, "write"):
            os.fsync(self.file.fileno())

    def close(self) -> None:
        self.file.close()
