"""The Python API offers the functions of the commands in a few lines."""

import json
import os
import signal
from pathlib import Path

import pytest

import coupledqk
from coupledqk.errors import CoupledQKError
from coupledqk.run_folder import RunFolder
from coupledqk.runs import Run
from coupledqk.runs.training import train_run
from coupledqk.schema import change
from small_runs import TINY, tiny


def test_a_few_lines_of_python_train_evaluate_and_sample(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = coupledqk.recipe("nano", "euler", corpus=str(text), **TINY)
    run = coupledqk.train(config, tmp_path / "mine", progress=False)
    assert isinstance(run, coupledqk.Run)
    again = Run.open(tmp_path / "mine")
    assert again.config == config
    assert again.result == run.result
    assert [record["step"] for record in again.metrics("valid")] == [5, 10, 15, 20]
    assert len(again.metrics()) == len(again.metrics("train")) + len(again.metrics("valid"))
    measured = again.evaluate(device="cpu", progress=False)
    assert measured["loss"] == pytest.approx(run.result["best"]["loss"], rel=1e-6)
    assert "each target once" in measured["perplexity_definition"]
    n_tokens = len(again.corpus(progress=False).valid)
    assert f"{n_tokens:,} tokens" in measured["perplexity_definition"]
    assert measured["perplexity_definition"] == run.result["definition"]
    sample = "".join(again.generate("4 squared", 8, seed=1, device="cpu"))
    assert sample == "".join(again.generate("4 squared", 8, seed=1, device="cpu"))
    assert 0 < len(sample) <= 8
    assert again.corpus(progress=False).info.hash == run.info["corpus"]["hash"]
    assert capsys.readouterr().err == ""


def test_progress_is_shown_by_default(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    coupledqk.train(tiny(text), tmp_path / "shown")
    assert "shown  20/20  valid perplexity" in capsys.readouterr().err


def test_another_corpus_is_read_completely_and_with_the_runs_tokenizer(text: Path, tmp_path: Path) -> None:
    run = coupledqk.train(tiny(text, max_tokens=300), tmp_path / "mine", progress=False)
    other = tmp_path / "other.txt"
    other.write_text("".join(f"{n} plus {n} is {2 * n}.\n" for n in range(60)))
    corpus = run.corpus(str(other), progress=False)
    assert corpus.tokenizer.to_json() == run.tokenizer().to_json()
    assert sum(split.bytes for split in corpus.info.splits.values()) == len(other.read_bytes())
    assert len(run.corpus(progress=False).train) == 300


def test_the_local_copy_of_the_runs_corpus_is_not_used_for_another_corpus(text: Path, tmp_path: Path) -> None:
    (tmp_path / "pubmed").mkdir()
    (tmp_path / "pubmed/text.txt").write_bytes(text.read_bytes())
    config = change(tiny(text), {"corpus": "pubmed", "data_dir": str(tmp_path / "pubmed"), "steps": 2, "warmup": 1})
    run = coupledqk.train(config, tmp_path / "mine", progress=False)
    assert run.text().data_dir == run.text("pubmed").data_dir == str(tmp_path / "pubmed")
    assert run.text("wikitext-2").data_dir is None
    assert run.text("wikitext-2", tmp_path).data_dir == str(tmp_path)


def test_ctrl_c_saves_the_run_and_the_same_call_resumes_it(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny(text)
    whole = coupledqk.train(config, tmp_path / "whole", progress=False)
    saved = RunFolder.cut_logs
    with monkeypatch.context() as patch:
        # a signal while the first step is about to begin
        patch.setattr(RunFolder, "cut_logs", lambda *args: (saved(*args), os.kill(os.getpid(), signal.SIGINT)))
        with pytest.raises(KeyboardInterrupt):
            coupledqk.train(config, tmp_path / "parts", progress=False)
    assert Run.open(tmp_path / "parts").metrics() == []  # the step did not begin
    parts = coupledqk.train(config, tmp_path / "parts", progress=False)
    assert parts.metrics() == whole.metrics()


def test_every_start_of_a_run_is_recorded(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for machine, stop in (("laptop", True), ("cluster", True), ("cluster", False)):
        monkeypatch.setattr("coupledqk.provenance.machine", lambda machine=machine: machine)
        run = train_run(tiny(text), tmp_path / "run", stop=lambda stop=stop: stop)
    assert [start["machine"] for start in run.info["starts"]] == ["laptop", "cluster", "cluster"]
    assert all(start.keys() == {"started", "commit", "versions", "machine"} for start in run.info["starts"])


def test_a_run_folder_that_records_only_its_first_start_can_be_read_and_resumed(text: Path, tmp_path: Path) -> None:
    run = train_run(tiny(text), tmp_path / "run", stop=lambda: True)
    info = run.info
    (start,) = info.pop("starts")
    (run.path / "info.json").write_text(json.dumps({**info, **start, "machine": "old"}))
    assert run.info["starts"] == [{**start, "machine": "old"}]
    assert len(train_run(tiny(text), tmp_path / "run").info["starts"]) == 2


def test_reading_the_status_of_a_run_does_not_prevent_its_training(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    with run.lock():
        assert run.status == "running"
        (run.path / "lock").chmod(0o555)
        assert run.status == "running"
        (run.path / "lock").chmod(0o755)
    assert run.status == "interrupted"
    with run.lock():
        assert run.status == "running"


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (lambda run: next(run.generate("")), "the prompt is empty"),
        (lambda run: Run.open(run.path / "nowhere"), "no such run folder"),
        (lambda run: run.model("final", device="abacus"), "cannot be used here"),
    ],
)
def test_mistakes_are_reported_in_one_line(text: Path, tmp_path: Path, act, says: str) -> None:
    run = train_run(tiny(text, steps=3), tmp_path / "run")
    with pytest.raises(CoupledQKError, match=says):
        act(run)
