"""`coupledqk doctor` describes intact and broken environments, and `completion` works in a real shell."""

import importlib.metadata
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from coupledqk import doctor
from coupledqk.cli import COMMANDS, main


def findings() -> dict[str, doctor.Finding]:
    return {finding.name: finding for finding in doctor.examine()}


def test_a_working_environment_has_no_problem(capsys: pytest.CaptureFixture[str], own_cache: None) -> None:
    main(["doctor", "--json"])
    found = {each["name"]: each for each in json.loads(capsys.readouterr().out)}
    assert not [each for each in found.values() if each["state"] == "problem"]
    assert found["extra hf"]["state"] == "ok"
    assert "GFLOP/s" in found["matrix products"]["text"]


def test_matrix_products_that_could_be_faster_are_pointed_out() -> None:
    assert doctor._advice(mkl=110e9, onednn=120e9) == ""
    assert "250 are possible: see 'AMD processors with AVX-512'" in doctor._advice(mkl=110e9, onednn=250e9)
    guide = Path(__file__).parents[1] / "docs" / "performance.md"
    assert "**AMD processors with AVX-512.**" in guide.read_text()


def test_missing_and_old_packages_are_named_with_the_command_that_installs_them(
    monkeypatch: pytest.MonkeyPatch, own_cache: None
) -> None:
    real = importlib.metadata.version
    versions = {"safetensors": "0.1", "transformers": None}

    def version(name: str) -> str:
        if name not in versions:
            return real(name)
        if versions[name] is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    found = findings()
    assert found["packages"].state == "problem"
    assert "safetensors is 0.1, expected >=0.5" in found["packages"].text
    assert found["extra hf"].state == "absent"
    assert "transformers is missing: pip install 'coupledqk[hf]'" in found["extra hf"].text


def test_a_broken_torch_is_reported_with_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], own_cache: None
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(SystemExit) as stop:
        main(["doctor"])
    assert stop.value.code == 1
    said = capsys.readouterr().out
    assert "✗ torch" in said
    assert "✓ tokenizer" in said
    assert "Traceback" not in said


def test_a_cache_that_cannot_be_written_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("COUPLEDQK_CACHE", str(tmp_path / "file"))
    found = findings()["cache folder"]
    assert found.state == "problem"
    assert "COUPLEDQK_CACHE" in found.text


def completed(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The completions that bash offers for the last word."""
    main(["completion", "bash"])
    script = tmp_path / "completion.bash"
    script.write_text(capsys.readouterr().out)
    typed = " ".join(f"'{word}'" for word in words)
    ask = f'source {script}; COMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}; _coupledqk; echo "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "--norc", "-c", ask], capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_commands_flags_settings_and_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert completed(["coupledqk", ""], tmp_path, capsys) == list(COMMANDS)
    assert completed(["coupledqk", "train", "--dry"], tmp_path, capsys) == ["--dry-run"]
    assert completed(["coupledqk", "train", "--n-st"], tmp_path, capsys) == ["--n-steps"]
    assert completed(["coupledqk", "train", "--variant", "hamiltonian_g"], tmp_path, capsys) == [
        "hamiltonian_gqa",
        "hamiltonian_gated",
    ]
    assert completed(["coupledqk", "reproduce", "abl"], tmp_path, capsys) == ["ablation", "ablation-modern"]
    assert completed(["coupledqk", "reproduce", "--scale", "p"], tmp_path, capsys) == ["paper"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_scripts_for_other_shells_name_every_command(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["completion", shell])
    script = capsys.readouterr().out
    assert all(name in script for name in COMMANDS)
    if program := shutil.which(shell):
        subprocess.run([program, "-n"], input=script, text=True, check=True)
