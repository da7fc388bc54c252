"""The suite of measurements is resumable and respects its time limit."""

import importlib.util
import json
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def script(name: str, monkeypatch: pytest.MonkeyPatch):
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch):
    return script("quiet", monkeypatch)


def test_a_part_is_run_once_and_its_output_logged(quiet, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log.md"
    parts = [quiet.Part("first", 1, ("-c", "print('6 tokens/s')")), quiet.Part("bad", 1, ("-c", "raise SystemExit(3)"))]
    quiet.run_all(parts, 25, tmp_path, log)
    assert "bad: failed with exit code 3; it is not in the log" in capsys.readouterr().out
    kept = log.read_text()
    assert kept.startswith("# Measurements\n\n## first\n")
    assert "```\n6 tokens/s\n```" in kept
    assert "## bad" not in kept
    parts[1] = quiet.Part("bad", 1, ("-c", "print('7 tokens/s')"))
    quiet.run_all(parts, 25, tmp_path, log)
    assert f"first: already in {log}" in capsys.readouterr().out
    assert log.read_text().startswith(kept)
    assert "7 tokens/s" in log.read_text()


def test_parts_longer_than_the_remaining_time_are_left_out(
    quiet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = [
        quiet.Part("long", 9, ("-c", "print('long')")),
        quiet.Part("short", 2, ("-c", "print('short')")),
        quiet.Part("missing", 1, ("benchmarks/nothing.py",)),
    ]
    quiet.run_all(parts, 5, tmp_path, tmp_path / "log.md", clock=lambda: 0.0)
    said = capsys.readouterr().out
    assert "long: left out, it takes about 9 minutes and 5.0 remain" in said
    assert "missing: left out, nothing.py does not exist" in said
    assert "## short" in (tmp_path / "log.md").read_text()


def test_the_commands_of_the_suite_can_be_parsed(quiet, monkeypatch: pytest.MonkeyPatch) -> None:
    from coupledqk.bench.benchmark import Benchmark
    from coupledqk.bench.records import Result
    from coupledqk.cli import main

    class ParsedError(Exception):
        pass

    def stop(self: Benchmark, on_message: object) -> Result:
        self.require_valid()
        raise ParsedError

    monkeypatch.setattr(Benchmark, "measure", stop)
    commands = [part.command[2:] for part in quiet.PARTS if part.command[:2] == ("-m", "coupledqk")]
    assert len(commands) >= 4
    for command in commands:
        with pytest.raises(ParsedError):
            main(list(command))


def test_results_are_formatted_as_documentation_tables(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    summary = script("summary", monkeypatch)
    eager = ROOT / "results" / "bench" / "2026-11-17-throughput.json"
    data = json.loads(eager.read_text())
    data["about"]["compiled"] = True
    data["rows"][1]["training"]["relative"]["median"] = 0.5
    data["rows"] = data["rows"][:2]
    (tmp_path / "compiled.json").write_text(json.dumps(data))
    monkeypatch.setattr(sys, "argv", ["summary.py", str(eager), str(tmp_path / "compiled.json")])
    summary.main()
    lines = capsys.readouterr().out.splitlines()
    cells = {line.split(" | ")[0]: line.split(" | ") for line in lines if line.startswith("| `")}
    assert list(cells) == ["| `standard`", "| `euler`, n = 3", "| `hamiltonian`, n = 3"]
    assert cells["| `euler`, n = 3"][1].startswith("0.977 (")
    assert cells["| `euler`, n = 3"][2].startswith("0.500 (")
    assert cells["| `hamiltonian`, n = 3"][1].startswith("0.933 (")
    assert cells["| `hamiltonian`, n = 3"][2] == "–"


def test_growth_is_measured_fitted_and_drawn(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    growth = script("growth", monkeypatch)
    small = replace(
        growth.COMMON, preset="mini", vocab=31, seq_len=8, rounds=1, memory_batch=0, device="cpu", threads=1
    )
    monkeypatch.setattr(
        growth, "SWEEPS", {"depths": replace(small, depths=(1, 2, 3)), "n-steps": replace(small, n_steps=(1, 2, 3))}
    )
    monkeypatch.setattr(sys, "argv", ["growth.py", "--save", str(tmp_path)])
    growth.main()
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    fitted = [line[:4] for line in lines if "linear" in line]
    assert fitted == [
        *([["depths", name, "time", "linear"] for name in ("standard", "euler", "hamiltonian")]),
        *([["n-steps", name, "time", "linear"] for name in ("euler", "hamiltonian")]),
    ]
    (figure,) = tmp_path.glob("*-growth.svg")
    drawn = "".join(ElementTree.parse(figure).getroot().itertext())
    assert "seconds of forward + backward against layers" in drawn
    assert "seconds of forward + backward against steps n" in drawn
