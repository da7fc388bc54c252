"""The command line."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from coupledqk.cli import COMMANDS, main, overview
from coupledqk.errors import CoupledQKError
from coupledqk.recipes import recipe
from coupledqk.run_folder import RunFolder
from coupledqk.schema import parse_flags, to_toml
from coupledqk.variants import VARIANTS

SHAPE = [
    "--tokenizer=bytes", "--d-model=16", "--n-heads=2", "--n-layers=1", "--d-ff=32", "--seq-len=16", "--batch-size=4",
    "--steps=12", "--warmup=2", "--eval-every=6", "--save-every=6", "--device=cpu", "--lr=1e-2",
]  # fmt: skip


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a text and a run trained on it by the command line."""
    folder = tmp_path_factory.mktemp("shelf")
    (folder / "text.txt").write_text("".join(f"{n} squared is {n * n}.\n" for n in range(60)))
    (folder / "other.txt").write_text("".join(f"{n} plus {n} is {2 * n}.\n" for n in range(60)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COUPLEDQK_CACHE", str(folder / "cache"))
        main(
            [
                "train",
                "--variant",
                "euler",
                "--corpus",
                str(folder / "text.txt"),
                "--out",
                str(folder / "runs/one"),
                *SHAPE,
            ]
        )
    return folder


@pytest.fixture(autouse=True)
def _cache(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COUPLEDQK_CACHE", str(shelf / "cache"))


def test_params_agrees_with_the_paper_in_every_row_at_60m(capsys: pytest.CaptureFixture[str]) -> None:
    main(["params", "--json"])
    rows = {row["variant"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows.keys() == VARIANTS.keys()
    assert {name for name, row in rows.items() if row["agrees"]} == {
        name for name, row in rows.items() if row["in_paper"]
    }
    assert rows["hamiltonian"]["over_standard"] == 65_600
    assert not any(row["agrees"] is False for row in rows.values())


def test_params_shows_where_the_paper_disagrees(capsys: pytest.CaptureFixture[str]) -> None:
    main(["params", "--preset", "medium", "--positions", "512"])
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line}
    assert lines["standard"].split()[-2:] == ["152.3M", "yes"]
    assert lines["hamiltonian"].split()[-2:] == ["152.4M", "yes"]
    assert lines["gqa"].split()[-2:] == ["144.4M", "NO"]
    assert "paper-notes" in lines["Where"]


def test_tiny_has_the_papers_size_at_its_mqar_vocabulary(capsys: pytest.CaptureFixture[str]) -> None:
    main(["params", "--preset", "tiny", "--vocab", "64", "--positions", "256", "--json"])
    rows = {row["variant"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["standard"]["agrees"]
    assert rows["hamiltonian"]["agrees"]


def test_train_prints_the_result_with_the_definition_of_perplexity(
    shelf: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ["train", "--corpus", str(shelf / "text.txt"), "--out", str(shelf / "runs/two"), *SHAPE]
    main(run)
    printed = capsys.readouterr()
    perplexity = RunFolder(shelf / "runs/two").result["best"]["perplexity"]
    assert f"{perplexity:.2f}" in printed.out
    assert "each target once" in printed.out
    assert "two  12/12  valid perplexity" in printed.err  # plain lines where there is no terminal
    main(run)
    assert f"{perplexity:.2f}" in capsys.readouterr().out  # a finished run is not trained again


def test_eval_reproduces_the_perplexity_of_training(shelf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["eval", str(shelf / "runs/one"), "--json"])
    measured = json.loads(capsys.readouterr().out)
    best = RunFolder(shelf / "runs/one").result["best"]
    assert measured["perplexity"] == pytest.approx(best["perplexity"], rel=1e-6)
    assert measured["bits_per_byte"] == pytest.approx(best["bits_per_byte"], rel=1e-6)
    assert "non-overlapping windows of 16 tokens" in measured["perplexity_definition"]
    main(["eval", str(shelf / "runs/one"), "--corpus", str(shelf / "other.txt"), "--json"])
    elsewhere = json.loads(capsys.readouterr().out)
    assert elsewhere["hash"] != measured["hash"]
    assert elsewhere["perplexity"] > measured["perplexity"]


def test_generate_is_reproducible_with_a_seed(shelf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def sample(*options: str) -> str:
        main(["generate", str(shelf / "runs/one"), "--prompt", "7 sq", "--tokens", "12", *options])
        return capsys.readouterr().out

    assert sample("--seed", "1") == sample("--seed", "1")
    assert sample("--seed", "1") != sample("--seed", "2")
    assert sample("--temperature", "0").startswith("7 sq")


def test_a_prompt_that_is_not_utf8_is_continued(shelf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["generate", str(shelf / "runs/one"), "--prompt", "7\udcff", "--tokens", "2"])
    assert capsys.readouterr().out.startswith("7?")


def test_any_terminal_can_print_the_output(shelf: Path) -> None:
    command = [sys.executable, "-m", "coupledqk", "runs", str(shelf / "runs")]
    ascii_only = subprocess.run(
        command, env={**os.environ, "PYTHONIOENCODING": "ascii"}, capture_output=True, text=True
    )
    assert (ascii_only.returncode, ascii_only.stderr) == (0, "")
    assert "euler" in ascii_only.stdout
    closed = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *command], capture_output=True, text=True)
    assert (closed.returncode, closed.stderr) == (0, "")


def test_an_empty_validation_split_is_refused_and_suggested_commands_quote_names_with_spaces(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.txt").write_text("some words and more words " * 20)
    (tmp_path / "valid.txt").write_text("")
    out = tmp_path / "a run"
    command = ["train", "--corpus", str(tmp_path), "--out", str(out), *SHAPE]
    with pytest.raises(SystemExit):
        main(command)
    assert f"the validation split of {tmp_path} has 0 tokens: expected at least 2" in capsys.readouterr().err
    assert not (out / "checkpoints").exists()
    (tmp_path / "valid.txt").write_text("some words " * 5)
    main(command)
    assert f"coupledqk generate '{out}' --prompt" in capsys.readouterr().out


def test_runs_lists_runs_with_their_status(shelf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["runs", str(shelf / "runs"), "--json"])
    rows = {Path(row["run"]).name: row for row in json.loads(capsys.readouterr().out)}
    assert (rows["one"]["attention"], rows["one"]["status"], rows["one"]["step"]) == ("euler", "finished", "12/12")
    main(["runs", str(shelf / "runs")])
    assert "euler" in capsys.readouterr().out


def test_sweep_names_and_draws_the_best_learning_rate(shelf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["sweep", "--corpus", str(shelf / "text.txt"), *SHAPE[:-1], "--lrs", "1e-4", "1e-2", "1e30"]
    main([*command, "--out", str(shelf / "sweep")])
    said = capsys.readouterr()
    assert "best learning rate: 0.01" in said.out
    assert "1e+30 seed 0" in said.err
    assert "<svg" in (shelf / "sweep/sweep.svg").read_text()
    assert "0.01" in (shelf / "sweep/sweep-lr.html").read_text()
    main([*command, "--out", str(shelf / "sweep"), "--json"])
    again = capsys.readouterr()
    rows = json.loads(again.out)["rows"]
    assert [row["n"] for row in rows] == [1, 1, 0]
    assert "2 of 3 runs are already finished" in again.err


def test_data_info_counts_bytes_documents_and_tokens(shelf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["data", "info", "--corpus", str(shelf / "text.txt"), "--tokenizer", "bytes", "--json"])
    info = json.loads(capsys.readouterr().out)
    size = (shelf / "text.txt").stat().st_size
    assert sum(split["bytes"] for split in info["splits"].values()) == size
    assert all(split["tokens"] == split["bytes"] + split["documents"] for split in info["splits"].values())
    assert len(info["hash"]) == 64
    assert RunFolder(shelf / "runs/one").info["corpus"]["hash"] == info["hash"]


def test_a_configuration_file_replaces_recipe_and_variant(shelf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = shelf / "mine.toml"
    file.write_text(to_toml(RunFolder(shelf / "runs/one").config))
    main(["train", "--config", str(file), "--seed", "3", "--dry-run"])
    printed = capsys.readouterr().out
    assert "seed = 3" in printed
    assert 'method = "euler"' in printed


def test_the_warmup_scales_with_the_steps_unless_it_is_set(capsys: pytest.CaptureFixture[str]) -> None:
    main(["train", "--steps", "20", "--dry-run"])
    assert "warmup = 2\n" in capsys.readouterr().out
    main(["train", "--steps", "20", "--warmup", "7", "--dry-run"])
    assert "warmup = 7\n" in capsys.readouterr().out


def test_flags_become_settings() -> None:
    flags = [
        "--lr",
        "3e-4",
        "--compile",
        "--data-dir=/a/b",
        "--n_steps",
        "1",
        "--tokenizer",
        "bpe:512",
        "--gate",
        "false",
    ]
    assert parse_flags(recipe("nano", "euler"), flags) == {
        "lr": 3e-4, "compile": True, "data_dir": "/a/b", "n_steps": 1, "tokenizer": "bpe:512", "gate": False
    }  # fmt: skip


def test_string_settings_are_taken_literally() -> None:
    flags = ["--corpus", "2024", "--data-dir", "2024-01-01", "--max-tokens", "2_000", "--init-from", "true"]
    assert parse_flags(recipe("nano"), flags) == {
        "corpus": "2024", "data_dir": "2024-01-01", "max_tokens": 2000, "init_from": "true"
    }  # fmt: skip


MISTAKES = [
    (["params", "--preset", "smal"], "did you mean 'small'"),
    (["parms"], "did you mean 'params'"),
    (["params", "--vocab", "0"], "vocab_size=0: expected at least 1"),
    (["train", "--variant", "eulr"], "did you mean 'euler'"),
    (["train", "--recipe", "nanno"], "did you mean 'nano'"),
    (["train", "--lrr", "1"], "unknown setting 'lrr': did you mean 'lr'"),
    (["train", "--lr", "fast"], "lr='fast': expected float"),
    (["train", "--steps", "1e3"], "steps='1e3': expected int"),
    (["train", "--gate", "yes"], "gate='yes': expected bool"),
    (["train", "--precision", "fp15"], "unknown precision 'fp15': did you mean 'fp16'"),
    (["train", "--lr", "--seed", "3"], "--lr has no value: write --lr VALUE"),
    (["train", "--lr", "1e-3", "--lr", "3"], "--lr is given twice"),
    (["train", "--steps", "5", "--warmup", "9"], "warmup=9: expected 0 to 5, the number of steps"),
    (["train", "--seq-len", "999"], "longer than the model's 256 learned positions"),
    (["train", "--tokenizer", "wordpiece"], "unknown tokenizer 'wordpiece'"),
    (["train", "--corpus", "wikitext-3"], "did you mean 'wikitext-"),
    (["train", "--device", "tpu-9"], "device 'tpu-9' cannot be used here"),
    (["train", "--config", "nowhere.toml"], "nowhere.toml: no such file"),
    (["train", "--resume", "nowhere"], "nowhere: no such run folder"),
    (["train", "stray"], "unexpected 'stray'"),
    (["train", "--lr", "--lr", "3"], "--lr has no value"),
    (["mqar", "--seeds", "first"], "--seeds first: expected numbers such as 0 1 2, or a range such as 0-7"),
    (["reproduce", "smoke", "--seeds", "7-3"], "--seeds 7-3: expected the smaller number first, as in 3-7"),
    (["mqar", "--level", "easy", "--pairs", "3"], "--level easy sets the pairs and the length"),
    (["mqar", "--length", "0"], "seq_len=0: expected at least 1"),
    (["glue"], "name at least one run folder"),
    (["glue", "SHELF/runs/one", "--epochs", "0"], "epochs=0: expected at least 1"),
    (["eval", "nowhere"], "nowhere: no such run folder"),
    (["generate", "SHELF"], "is not a run folder"),
    (["explore", "nowhere"], "nowhere: no such run folder"),
    (["generate", "SHELF/runs/one", "--prompt", ""], "the prompt is empty"),
    (["generate", "SHELF/runs/one", "--temperature", "-1"], "temperature=-1.0"),
    (["generate", "SHELF/runs/one", "--tokens", "999"], "longer than the model's 256 learned positions"),
    (["runs", "nowhere"], "nowhere: no such folder"),
    (["sweep", "--lrs", "1e-3"], "at least two learning rates"),
    (["data", "info", "--corpus", "nowhere.txt"], "nowhere.txt"),
]


def test_fine_tuning_takes_one_run_of_each_variant_and_seed(shelf: Path, tmp_path: Path) -> None:
    from coupledqk.lab.glue import fine_tuning_experiment

    one, copy = shelf / "runs/one", tmp_path / "copy"
    again = one.parent / ".." / "runs" / "one"
    assert fine_tuning_experiment([one, again]) == fine_tuning_experiment([one])
    shutil.copytree(one, copy)
    with pytest.raises(CoupledQKError, match=f"{one} and {copy} are both euler with seed 0: expected one run per seed"):
        fine_tuning_experiment([one, copy])


@pytest.mark.parametrize(("arguments", "says"), MISTAKES, ids=lambda value: value if isinstance(value, str) else None)
def test_bad_arguments_give_one_line_errors_and_exit_code_2(
    arguments: list[str],
    says: str,
    shelf: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main([argument.replace("SHELF", str(shelf)) for argument in arguments])
    assert stop.value.code == 2
    message = capsys.readouterr().err
    assert says in message
    assert message.count("\n") == 1


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([name, "--help"])
    assert stop.value.code == 0
    assert f"coupledqk {name}" in capsys.readouterr().out


def test_help_does_not_import_torch() -> None:
    code = """
import sys
from coupledqk.cli import main
try:
    main(["--help"])
except SystemExit:
    sys.exit("torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "params" in done.stdout


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_the_list_of_commands_fits_the_terminal_and_breaks_no_word(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coupledqk.cli.line_width", lambda: columns)
    monkeypatch.setattr("coupledqk.terminal.line_width", lambda: columns)
    text = overview()
    assert max(map(len, text.splitlines())) <= columns
    for command in COMMANDS.values():
        assert (command.__doc__ or "").splitlines()[0] in " ".join(text.split())
