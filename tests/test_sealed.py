"""Damaged files of a run are reported or repaired, and never change a number silently."""

import json
import re
from pathlib import Path

import pytest

from coupledqk.errors import CoupledQKError
from coupledqk.files import FileError
from coupledqk.run_folder import RunFolder
from coupledqk.sealed import Log, LogWriter, log_lines, read_sealed_json, read_sealed_toml, write_json, write_toml
from coupledqk.training.checkpoints import Checkpoints
from small_runs import run_to, tiny, trained_bits

RECORDS = [{"kind": "train", "step": step, "loss": 1 / step} for step in range(1, 6)]


def flips(content: bytes):
    """All variants of the content with one bit flipped."""
    for place in range(len(content)):
        for bit in range(8):
            yield content[:place] + bytes([content[place] ^ (1 << bit)]) + content[place + 1 :]


def test_a_log_is_json_lines_and_reads_back(tmp_path: Path) -> None:
    log = LogWriter(tmp_path / "log.jsonl")
    for record in RECORDS[:3]:
        log.write(record)
    log.close()
    more = LogWriter(tmp_path / "log.jsonl")
    for record in RECORDS[3:]:
        more.write(record)
    more.close()
    text = (tmp_path / "log.jsonl").read_text()
    assert text == log_lines(RECORDS)[0]
    assert [json.loads(line)["loss"] for line in text.splitlines()] == [record["loss"] for record in RECORDS]
    found = Log.read(tmp_path / "log.jsonl")
    assert (found.records, found.fault, found.sealed) == (RECORDS, None, True)


def test_no_flipped_bit_of_a_log_changes_a_record_silently(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    for flipped in flips(log_lines(RECORDS)[0].encode()):
        path.write_bytes(flipped)
        found = Log.read(path)
        assert found.fault is not None
        for record, written in zip(found.records, RECORDS, strict=False):
            assert {key: record[key] for key in written} == written
        assert re.search(rf"log\.jsonl, line {len(found.records) + 1}, is damaged", found.fault)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda lines: [lines[0], *lines[2:]],
        lambda lines: [lines[1], lines[0], *lines[2:]],
        lambda lines: [lines[0], *lines],
        lambda lines: [*lines[:2], *log_lines(RECORDS[2:])[0].splitlines(True)],
    ],
)
def test_missing_repeated_and_swapped_lines_of_a_log_are_detected(tmp_path: Path, spoil) -> None:
    (tmp_path / "log.jsonl").write_text("".join(spoil(log_lines(RECORDS)[0].splitlines(True))))
    assert Log.read(tmp_path / "log.jsonl").fault is not None


@pytest.mark.parametrize(
    "content", [b"", b"{}\n", b"null\n", b'{"step": "1"}\n', b"[" * 100_000, b"\xff\n", b"1" * 9999]
)
def test_a_file_that_is_not_a_log_is_damaged_or_empty(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "log.jsonl").write_bytes(content)
    found = Log.read(tmp_path / "log.jsonl")
    assert found.records == []
    assert (found.fault is None) == (content == b"")


def test_no_flipped_bit_of_json_or_toml_changes_a_value_silently(tmp_path: Path) -> None:
    data = {"loss": 0.1, "name": "é", "list": [1, {"deep": None}]}
    write_json(tmp_path / "data.json", data)
    write_toml(tmp_path / "data.toml", 'name = "x"\nlr = 1e-3\n')
    for flipped in flips((tmp_path / "data.json").read_bytes()):
        (tmp_path / "data.json").write_bytes(flipped)
        try:
            found = read_sealed_json(tmp_path / "data.json", "restore it")
        except FileError:
            continue
        # the flipped bit is in white space, or in the name of the checksum
        assert {key: found[key] for key in data} == data
    for flipped in flips((tmp_path / "data.toml").read_bytes()):
        (tmp_path / "data.toml").write_bytes(flipped)
        try:
            found = read_sealed_toml(tmp_path / "data.toml")
        except FileError:
            continue
        assert found.startswith('name = "x"\nlr = 1e-3\n')


def flip_line(path: Path, number: int) -> None:
    """Changes a digit in a line of a log."""
    lines = path.read_bytes().splitlines(True)
    place = lines[number - 1].index(b'"loss": ') + len(b'"loss": ')
    lines[number - 1] = lines[number - 1][:place] + b"9" + lines[number - 1][place + 1 :]
    path.write_bytes(b"".join(lines))


def test_damage_in_the_log_of_a_finished_run_is_reported_and_repaired_by_resuming(text: Path, tmp_path: Path) -> None:
    config = tiny(text)
    run = run_to(config, tmp_path / "run")
    whole = trained_bits(run)
    flip_line(run.path / "metrics.jsonl", 23)  # the last checkpoints are those of steps 16 and 20
    with pytest.raises(FileError, match=r"metrics\.jsonl, line 23, is damaged .*--resume"):
        run.metrics()
    notes = []
    repaired = run_to(config, tmp_path / "run", on_event=lambda event: notes.extend(getattr(event, "notes", ())))
    assert any("line 23, is damaged" in note for note in notes)
    assert trained_bits(repaired) == whole


def test_log_damage_before_all_checkpoints_is_reported_and_nothing_is_overwritten(text: Path, tmp_path: Path) -> None:
    run = run_to(tiny(text), tmp_path / "run")
    flip_line(run.path / "metrics.jsonl", 2)
    before = (run.path / "metrics.jsonl").read_bytes()
    with pytest.raises(CoupledQKError, match=r"line 2, is damaged .* no usable checkpoint is left"):
        run_to(tiny(text), tmp_path / "run")
    assert (run.path / "metrics.jsonl").read_bytes() == before
    assert run.result
    assert Checkpoints(run.path / "checkpoints", keep=2).steps() == [16, 20]


def test_a_truncated_log_is_detected(text: Path, tmp_path: Path) -> None:
    run = run_to(tiny(text), tmp_path / "finished")
    lines = (run.path / "metrics.jsonl").read_text().splitlines(True)
    (run.path / "metrics.jsonl").write_text("".join(lines[:-1]))
    with pytest.raises(FileError, match=r"not the log that result\.json was computed from"):
        run.metrics()
    stopped = run_to(tiny(text), tmp_path / "stopped", stop_at=9)
    lines = (stopped.path / "metrics.jsonl").read_text().splitlines(True)
    (stopped.path / "metrics.jsonl").write_text("".join(lines[:-1]))
    notes = []
    again = run_to(tiny(text), tmp_path / "stopped", on_event=lambda event: notes.extend(getattr(event, "notes", ())))
    assert "step-0000009 was skipped" in notes[0]
    assert trained_bits(again) == trained_bits(run_to(tiny(text), tmp_path / "whole"))


def test_only_an_incomplete_last_line_of_an_unfinished_run_is_accepted(text: Path, tmp_path: Path) -> None:
    stopped = run_to(tiny(text), tmp_path / "stopped", stop_at=9)
    finished = run_to(tiny(text), tmp_path / "finished")
    n = len(stopped.metrics())
    for run in (stopped, finished):
        with (run.path / "metrics.jsonl").open("a") as log:
            log.write('{"kind": "train", "step": 21, "lo')
    assert len(stopped.metrics()) == n
    with pytest.raises(FileError, match="is damaged"):
        finished.metrics()
    (stopped.path / "metrics.jsonl").write_text((stopped.path / "metrics.jsonl").read_text() + "\n")
    with pytest.raises(FileError, match="is damaged"):
        stopped.metrics()


@pytest.mark.parametrize("name", ["config.toml", "info.json", "result.json", "tokenizer.json"])
def test_a_changed_value_in_a_file_of_a_run_is_reported(text: Path, tmp_path: Path, name: str) -> None:
    run = run_to(tiny(text, steps=4, warmup=1), tmp_path / "run")
    content = (run.path / name).read_text()
    (run.path / name).write_text(content.replace("1", "2", 1))
    run = type(run).open(run.path)
    with pytest.raises(FileError, match=rf"{name} is damaged"):
        _ = run.config, run.info, run.result, run.tokenizer()


def test_a_damaged_configuration_is_written_again_by_the_same_command(text: Path, tmp_path: Path) -> None:
    config = tiny(text)
    run = run_to(config, tmp_path / "run", stop_at=5)
    (run.path / "config.toml").write_text("seed = ")
    with pytest.raises(CoupledQKError, match=r"config\.toml"):
        run_to(tiny(text, seed=1), tmp_path / "run")
    assert run_to(config, tmp_path / "run").result
    assert RunFolder(run.path).config == config


def test_a_folder_without_checksums_is_read_and_resumed(text: Path, tmp_path: Path) -> None:
    config = tiny(text)
    whole = run_to(config, tmp_path / "whole")
    run = run_to(config, tmp_path / "old", stop_at=9)
    info, metrics = run.info, run.metrics()
    for path in run.path.glob("*.json*"):
        stripped = re.sub(r',\s*"(crc|checksum)": "[0-9a-f]+"', "", path.read_text())
        path.write_text(stripped)
    config_text = (run.path / "config.toml").read_text()
    (run.path / "config.toml").write_text(config_text.partition("# checksum")[0])
    old = type(run).open(run.path)
    assert (old.config, old.info, old.metrics()) == (config, info, metrics)
    assert not Log.read(run.path / "metrics.jsonl").sealed
    assert trained_bits(run_to(config, run.path)) == trained_bits(whole)
    assert Log.read(run.path / "metrics.jsonl").sealed
