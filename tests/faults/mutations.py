"""Kinds of faults: ways to corrupt the content of a file. One function for each, and one registry.

To add one, write a function of a random generator and a content, and put it into MUTATIONS.
"""

import json
import random
import tomllib
from collections.abc import Callable
from typing import Any

import tomli_w

Mutation = Callable[[random.Random, bytes], bytes]

TOKENS = (
    b"", b"\x00", b"\xff\xfe", b"\n", b"\r\n", b"\t", b'"', b"'", b"{", b"}", b"[", b"]", b",", b":", b"=", b"#", b"\\",
    b"\\ud800", b"null", b"true", b"NaN", b"Infinity", b"-Infinity", b"inf", b"nan", b"1e999", b"-1", b"0", b"0.0", b"1e-400",
    b"9" * 30, b"9" * 5000, b"0x" + b"f" * 5000, b"[" * 2000, b'{"a":' * 500, b"[[a]]\n", b"a.b.c = 1\n", b"1979-05-27",
    b"\xed\xa0\x80", b"../../../etc/passwd", b"/dev/zero", b"\xf0\x9f\x92\xa5",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63 - 1, -(2**63), 10**18, 0.0, -0.0, 1e308, float("inf"), float("nan"), "", "x",
    "\0", "é", "x" * 300, "..", "/", [], [[]], [None], ["x"], {}, {"x": 1}, {"kind": "x"}, [{}], [1, 2, 3],
)  # fmt: skip


def flip_bit(draw: random.Random, content: bytes) -> bytes:
    if not content:
        return content
    place = draw.randrange(len(content))
    return content[:place] + bytes([content[place] ^ 1 << draw.randrange(8)]) + content[place + 1 :]


def truncate(draw: random.Random, content: bytes) -> bytes:
    return content[: draw.randrange(len(content) + 1)]


def remove_part(draw: random.Random, content: bytes) -> bytes:
    start, stop = _part(draw, content)
    return content[:start] + content[stop:]


def repeat_part(draw: random.Random, content: bytes) -> bytes:
    start, stop = _part(draw, content)
    return content[:stop] + content[start:stop] * draw.choice((1, 2, 10)) + content[stop:]


def move_part(draw: random.Random, content: bytes) -> bytes:
    start, stop = _part(draw, content)
    rest = content[:start] + content[stop:]
    place = draw.randrange(len(rest) + 1)
    return rest[:place] + content[start:stop] + rest[place:]


def zero_part(draw: random.Random, content: bytes) -> bytes:
    """Zeroes a part, as a file system may do at the end of a file after a power cut."""
    start, stop = _part(draw, content)
    return content[:start] + bytes(stop - start) + content[stop:]


def insert_token(draw: random.Random, content: bytes) -> bytes:
    place = draw.randrange(len(content) + 1)
    return content[:place] + draw.choice(TOKENS) + content[place:]


def replace_by_token(draw: random.Random, content: bytes) -> bytes:
    start, stop = _part(draw, content)
    return content[:start] + draw.choice(TOKENS) + content[stop:]


def random_bytes(draw: random.Random, content: bytes) -> bytes:
    return draw.randbytes(draw.choice((0, 1, 8, 100, 1000)))


def change_value(draw: random.Random, content: bytes) -> bytes:
    """Changes a value, key or shape in a JSON file, a line of JSON or a TOML file, and flips a bit in other files."""
    try:
        if content.startswith(b"{"):
            lines = content.splitlines(keepends=True)
            number = draw.randrange(len(lines))
            try:
                data = json.loads(lines[number])
            except ValueError:
                return json.dumps(_changed(draw, json.loads(content))).encode()
            lines[number] = json.dumps(_changed(draw, data)).encode() + b"\n"
            return b"".join(lines)
        return tomli_w.dumps(_changed(draw, tomllib.loads(content.decode()))).encode()
    except (ValueError, TypeError, AttributeError, RecursionError):
        return flip_bit(draw, content)


MUTATIONS: dict[str, Mutation] = {
    "flip a bit": flip_bit,
    "truncate": truncate,
    "remove a part": remove_part,
    "repeat a part": repeat_part,
    "move a part": move_part,
    "zero a part": zero_part,
    "insert a token": insert_token,
    "replace a part by a token": replace_by_token,
    "random bytes": random_bytes,
    "change a value": change_value,
}


def mutate(draw: random.Random, content: bytes) -> tuple[str, bytes]:
    """The content with a few faults, and their names. Half of the faults change values and keep files well-formed."""
    names = [
        "change a value" if draw.random() < 0.5 else draw.choice(list(MUTATIONS))
        for _ in range(draw.choice((1, 1, 1, 2, 4)))
    ]
    for name in names:
        content = MUTATIONS[name](draw, content)
    return ", ".join(names), content


def _part(draw: random.Random, content: bytes) -> tuple[int, int]:
    start = draw.randrange(len(content) + 1)
    return start, min(len(content), start + draw.choice((1, 2, 4, 16, 64, 1000)))


def _changed(draw: random.Random, data: Any) -> Any:
    """The data with one value, somewhere in it, replaced, removed, renamed or repeated."""
    if isinstance(data, dict) and data and draw.random() < 0.9:
        key = draw.choice(list(data))
        how = draw.random()
        if how < 0.1:
            return {name: value for name, value in data.items() if name != key}
        if how < 0.2:
            return {(key + "x" if name == key else name): value for name, value in data.items()}
        return {**data, key: _changed(draw, data[key])}
    if isinstance(data, list) and data and draw.random() < 0.9:
        place = draw.randrange(len(data))
        if draw.random() < 0.2:
            return data[:place] + data[place + 1 :]
        return [*data[:place], _changed(draw, data[place]), *data[place + 1 :]]
    return draw.choice(VALUES)
