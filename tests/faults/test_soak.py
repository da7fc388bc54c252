"""The script of `make soak`: what it stores and prints, and that the documentation quotes it."""

import json
import subprocess
import sys
from pathlib import Path

import soak


def test_the_outcome_of_a_part_is_stored_beside_those_of_other_parts(tmp_path: Path) -> None:
    earlier = {"flips": {**kept("bit flips", 3), "options": {}}}
    (tmp_path / "soak.json").write_text(json.dumps(earlier))
    command = [
        sys.executable,
        soak.__file__,
        "--parts",
        "read GLUE",
        "--inputs",
        "5",
        "--jobs",
        "1",
        "--out",
        str(tmp_path),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    parts = json.loads((tmp_path / "soak.json").read_text())
    assert list(parts) == ["flips", "read GLUE"]
    assert parts["flips"] == earlier["flips"]
    assert parts["read GLUE"]["trials"] == 5
    assert "| spoiled files, 1 readers | 5 |" in done.stdout
    assert "| bit flips | 3 | 3 | 0 | 0 | 0 | 0 | 0 |" in done.stdout


def kept(tried: str, n: int) -> dict:
    ends = dict.fromkeys((*soak.FINE, *soak.FAILED), 0) | {"reported": n}
    about = {"machine": "m", "commit": "c", "started": "2026-01-01T00:00", "versions": {"torch": "2"}, "seconds": 1.0}
    return {"tried": tried, "trials": n, "ends": ends, "failures": 0, "figures": {}, **about}


def test_the_documentation_quotes_the_stored_outcome() -> None:
    found = soak.SECTION.search(soak.DOCUMENT.read_text("utf-8"))
    assert found is not None
    stored = soak.RESULTS / "soak.json"
    expected = soak.page(json.loads(stored.read_text())) if stored.is_file() else "No outcome has been stored yet.\n"
    assert found[0] == expected
