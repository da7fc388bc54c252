"""Packaged sample models: how they are created, used and verified."""

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from coupledqk import CoupledQKError, samples
from coupledqk.cli import main
from coupledqk.runs import Run
from coupledqk.samples.packing import pack
from small_runs import run_to, tiny


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two tiny sample models and the runs from which they were made."""
    folder = tmp_path_factory.mktemp("made")
    text = folder / "squares.txt"
    text.write_text("".join(f"The square of {n} is {n * n}.\n" for n in range(600)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COUPLEDQK_CACHE", str(folder / "cache"))
        for name in samples.NAMES:
            pack(run_to(tiny(text, name), folder / "runs" / name), folder / "samples" / name)
    return folder


@pytest.fixture
def installed(made: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The package with these sample models in place of its own."""
    for file in (made / "samples").rglob("*"):
        if file.is_file():
            copy = tmp_path / "samples" / file.relative_to(made / "samples")
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(file.read_bytes())
    monkeypatch.setattr(samples, "FOLDER", tmp_path / "samples")
    monkeypatch.setenv("COUPLEDQK_CACHE", str(made / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "samples"


def test_a_sample_equals_its_run_with_weights_rounded_to_bfloat16(made: Path, installed: Path) -> None:
    run, sample = Run.open(made / "runs" / "hamiltonian"), samples.sample("hamiltonian")
    [stored] = sample.path.rglob("model.safetensors")
    assert {weight.dtype for weight in load_file(stored).values()} == {torch.bfloat16}
    trained, loaded = run.model(device="cpu").state_dict(), sample.model(device="cpu").state_dict()
    for name, weight in trained.items():
        torch.testing.assert_close(loaded[name], weight.bfloat16().float(), rtol=0, atol=0)
    assert sample.result["best"] == run.result["best"]


def test_the_card_states_quality_and_checksum_and_no_file_contains_a_local_path(made: Path) -> None:
    folder, run = made / "samples" / "hamiltonian", Run.open(made / "runs" / "hamiltonian")
    card = (folder / "README.md").read_text("utf-8")
    assert f"the same as trained, in float32 | {run.result['best']['bits_per_byte']:.4f} |" in card
    assert f"| bigram | {run.result['baselines'][1]['bits_per_byte']:.4f} |" in card
    rounded = float(re.findall(r"in bfloat16\*\* \| [0-9.]+ \| ([0-9.]+)", card)[0])
    assert rounded == pytest.approx(run.result["best"]["perplexity"], rel=0.02)
    for file in folder.rglob("*"):
        assert file.is_dir() or str(made).encode() not in file.read_bytes(), file


def test_only_a_finished_run_becomes_a_sample(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COUPLEDQK_CACHE", str(made / "cache"))
    stopped = run_to(tiny(made / "squares.txt"), tmp_path / "stopped", stop_at=5)
    with pytest.raises(CoupledQKError, match="is not finished"):
        pack(stopped, tmp_path / "sample")
    assert not (tmp_path / "sample").exists()


def test_the_commands_use_the_samples(installed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["explore", "--sample", "--text", "The square", "--device", "cpu"])
    assert "Attention of standard and hamiltonian" in Path("explore.html").read_text("utf-8")
    main(["generate", "--sample", "--prompt", "The ", "--tokens", "5", "--device", "cpu"])
    assert "\nThe " in capsys.readouterr().out
    corpus = str(installed.parent / "text.txt")
    Path(corpus).write_text("".join(f"The square of {n} is {n * n}.\n" for n in range(300)))
    main(["analyze", "--sample", "--batches", "2", "--corpus", corpus, "--device", "cpu"])
    assert "hamiltonian − standard" in capsys.readouterr().out


DAMAGE = {
    "missing": lambda file: file.unlink(),
    "differs": lambda file: file.write_bytes(bytes([file.read_bytes()[0] ^ 1]) + file.read_bytes()[1:]),
}


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("name", ["config.toml", "tokenizer.json", "model.safetensors", "result.json", "info.json"])
def test_a_damaged_sample_is_reported_in_one_line(
    name: str, how: str, installed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [file] = (installed / "hamiltonian").rglob(name)
    DAMAGE[how](file)
    with pytest.raises(SystemExit):
        main(["explore", "--sample"])
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    fault = f"{file.relative_to(installed / 'hamiltonian')} is missing" if how == "missing" else f"{name} differs"
    assert "the sample model hamiltonian in" in said
    assert f"{fault}): install coupledqk again" in said


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["explore", "runs/NAME", "--sample"], "give run folders or --sample, not both"),
        (["explore"], "0 runs given: name one run folder, or two to compare them, or use --sample"),
        (["generate"], "0 run folders given: name one, or use --sample"),
        (["generate", "runs/A", "runs/B"], "2 run folders given: name one"),
        (["analyze"], "no run given: name one or several"),
    ],
)
def test_mistakes_are_reported_in_one_line(
    arguments: list[str], says: str, installed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(arguments)
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"[1]", b"\xff", b'{"config.toml": "0"}'])
def test_damaged_checksums_are_reported_in_one_line(content: bytes, installed: Path) -> None:
    (installed / "standard" / "checksums.json").write_bytes(content)
    with pytest.raises(
        CoupledQKError, match=r"cannot be used \((checksums.json is damaged|the checksum of config.toml)"
    ):
        samples.sample("standard")


def test_a_package_without_samples_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "FOLDER", tmp_path)
    with pytest.raises(
        CoupledQKError, match=r"standard in .* cannot be used \(it is missing\): install coupledqk again$"
    ):
        samples.sample("standard")
    with pytest.raises(CoupledQKError, match="unknown sample model 'euler'"):
        samples.sample("euler")
