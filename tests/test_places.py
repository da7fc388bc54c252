"""Every command reports an invalid path in one line, without a traceback, and damages no file."""

import os
from pathlib import Path

import pytest

from coupledqk.cli import main
from coupledqk.runs import Run

PLACES = ["device/x", "file", "file/x", "n" * 300, "circle/x", "fifo", "binary"]
COMMANDS = [
    ["train", "--out", "PLACE", "--corpus", "TEXT", "--tokenizer", "bytes"],
    ["train", "--resume", "PLACE"],
    ["train", "--config", "PLACE"],
    ["train", "--plugin", "PLACE"],
    ["train", "--init-from", "PLACE", "--corpus", "TEXT", "--tokenizer", "bytes", "--out", "NEW"],
    ["eval", "PLACE"],
    ["generate", "PLACE", "--prompt", "x"],
    ["runs", "PLACE"],
    ["report", "PLACE", "-o", "NEW"],
    ["report", "RUN", "-o", "PLACE/report.html"],
    ["export", "RUN", "PLACE/model"],
    ["import", "PLACE", "--out", "NEW"],
    ["reproduce", "PLACE.toml", "--status"],
    ["bench", "--check", "PLACE"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: " ".join(words[:2]))
def test_invalid_paths_are_reported_in_one_line(
    command: list[str], source: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "device").symlink_to(os.devnull)
    (tmp_path / "file").write_text("mine")
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    os.mkfifo(tmp_path / "fifo")
    for place in PLACES:
        names = {"PLACE": tmp_path / place, "RUN": source.path, "TEXT": tmp_path / "text.txt", "NEW": tmp_path / "new"}
        words = command
        for name, path in names.items():
            words = [word.replace(name, str(path)) for word in words]
        with pytest.raises(SystemExit) as raised:
            main(words)
        said = capsys.readouterr().err
        assert raised.value.code == 2, (words, said)
        assert said.startswith("coupledqk: "), words
        assert said.count("\n") == 1, words
    assert (tmp_path / "file").read_text() == "mine"
