"""The command `coupledqk analyze`."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from coupledqk.analysis import record
from coupledqk.analysis.tables import starred, tables
from coupledqk.cli.analyze import Analyze
from coupledqk.data.shards import prepare
from coupledqk.errors import CoupledQKError
from coupledqk.recipes import recipe
from coupledqk.run_folder import RunFolder
from coupledqk.runs import Run
from coupledqk.runs.training import train_run

TINY = {
    "tokenizer": "bytes", "d_model": 32, "n_heads": 4, "n_layers": 2, "d_ff": 32, "seq_len": 16, "batch_size": 4,
    "steps": 12, "warmup": 2, "eval_every": 6, "save_every": 4, "keep": 3, "log_every": 2, "lr": 1e-2, "device": "cpu",
}  # fmt: skip


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of several variants on one text, one with another tokenizer, one deeper, and one that was never trained."""
    folder = tmp_path_factory.mktemp("shelf")
    (folder / "text.txt").write_text("".join(f"{n} squared is {n * n}.\n" for n in range(100)))
    (folder / "short.txt").write_text("nine bytes")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COUPLEDQK_CACHE", str(folder / "cache"))
        for name, variant, settings in (
            ("standard", "standard", {}),
            ("potential", "potential", {}),
            ("diff", "diff", {}),
            ("words", "standard", {"tokenizer": "bpe:260"}),
            ("deeper", "standard", {"n_layers": 3}),
        ):
            config = recipe("nano", variant, corpus=str(folder / "text.txt"), **{**TINY, **settings})
            train_run(config, folder / name)
    shutil.copytree(folder / "standard", folder / "again")
    RunFolder(folder / "untrained").create(RunFolder(folder / "standard").config)
    return folder


@pytest.fixture(autouse=True)
def _here(shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COUPLEDQK_CACHE", str(shelf / "cache"))
    monkeypatch.chdir(tmp_path)


def analyze(shelf: Path, *names: str, **options) -> dict:
    """The JSON that the command writes."""
    Analyze(tuple(shelf / name for name in names), **options).run()
    return json.loads(Path("analysis/analysis.json").read_text())


def test_the_rank_table_equals_an_independently_computed_mean_over_maps(
    shelf: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = analyze(shelf, "standard", batches=4)
    tokens = prepare(RunFolder.open(shelf / "standard").config.task).valid
    model, per_layer = Run.open(shelf / "standard").model("final", "cpu"), [[], []]
    n_windows = len(tokens) // 16
    for i in range(4):
        start = i * n_windows // 4 * 16
        with torch.no_grad(), record(model) as tape:
            model(torch.from_numpy(tokens[start : start + 16].astype(np.int64))[None])
        for layer, ranks in zip(tape.layers, per_layer, strict=True):
            for one_map in layer.pattern()[0].numpy().astype(np.float64):
                sigma = np.linalg.svd(one_map, compute_uv=False)
                ranks.append(sigma.sum() ** 2 / (sigma**2).sum())
    measured = found["runs"][0]["lengths"]["16"]["effective_rank"]
    assert measured["layers"] == pytest.approx([np.mean(ranks) for ranks in per_layer], rel=1e-6)
    printed = capsys.readouterr().out
    row = next(line for line in printed.splitlines() if line.startswith("standard")).split()
    assert row[1:] == [f"{value:.1f}" for value in (*measured["layers"], measured["mean"])]
    assert "4 sequences of 16 tokens (bytes)" in printed


def test_every_measure_is_written_with_its_definition(shelf: Path) -> None:
    found = analyze(shelf, "standard", "potential", batches=2)
    standard, potential = found["runs"]
    assert standard["lengths"]["16"].keys() < potential["lengths"]["16"].keys() == found["definitions"].keys()
    assert "energy" in potential["lengths"]["16"]
    assert all(found["definitions"].values())
    assert (potential["variant"], potential["step"], potential["seed"]) == ("potential", 12, 0)
    assert np.shape(potential["lengths"]["16"]["entropy"]["heads"]) == (2, 4)


def test_a_run_differs_from_another_run_but_not_from_its_copy(shelf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = analyze(shelf, "standard", "again", "diff", batches=5)
    same, other = found["differences"]
    assert (same["run"], other["run"], other["against"]) == ("again", "diff", "standard")
    for values in same["measures"].values():
        assert values["mean"] == {"difference": 0, "margin": 0}
    entropy = other["measures"]["entropy"]["mean"]
    means = [run["lengths"]["16"]["entropy"]["mean"] for run in found["runs"]]
    assert entropy["difference"] == pytest.approx(means[2] - means[0])
    assert abs(entropy["difference"]) > entropy["margin"] > 0
    printed = capsys.readouterr().out
    assert "other seeds may differ by more" in printed
    assert starred(entropy["difference"], entropy["margin"]) in printed


def test_the_same_run_gives_the_same_json(shelf: Path) -> None:
    assert analyze(shelf, "potential", batches=3) == analyze(shelf, "potential", batches=3)


def test_measures_are_reported_for_each_context_length(shelf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = analyze(shelf, "standard", "diff", batches=3, length=(16, 4, 8))
    assert [list(run["lengths"]) for run in found["runs"]] == [["4", "8", "16"]] * 2
    ranks = [values["effective_rank"]["mean"] for values in found["runs"][0]["lengths"].values()]
    assert ranks == sorted(ranks)
    assert found["text"]["length"] == 16
    assert "by context length" in capsys.readouterr().out


def test_every_checkpoint_of_a_run_can_be_analyzed(shelf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = analyze(shelf, "potential", batches=2, checkpoint="all")
    assert [run["step"] for run in found["runs"]] == [4, 8, 12]
    dt = [run["lengths"]["16"]["dt"]["mean"] for run in found["runs"]]
    assert len(set(dt)) == 3
    assert "potential @ 8" in capsys.readouterr().out
    final = analyze(shelf, "potential", batches=2)
    assert final["runs"] == found["runs"][-1:]


def test_the_json_can_be_printed(shelf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = analyze(shelf, "standard", batches=1, json=True)
    assert json.loads(capsys.readouterr().out) == found


def test_one_sequence_is_compared_without_an_interval(shelf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = analyze(shelf, "standard", "diff", batches=1)
    assert found["differences"][0]["measures"]["entropy"]["mean"]["margin"] is None
    assert "nan" not in tables(found)


def test_figures_are_written_in_every_format(shelf: Path) -> None:
    pytest.importorskip("matplotlib")
    analyze(shelf, "diff", batches=1, figures=True, layers=(1,), heads=(0, 3))
    names = ["attention-diff", "convergence", "entropy", "rank"]
    assert sorted({path.stem for path in Path("analysis").iterdir()} - {"analysis"}) == names
    assert len(list(Path("analysis").iterdir())) == 3 * len(names) + 1


MISTAKES = [
    ([], {}, "no run given"),
    (["nowhere"], {}, "no such run folder"),
    (["untrained"], {}, "has no checkpoint yet: train it with"),
    (["untrained"], {"checkpoint": "best"}, "has no checkpoint yet"),
    (["standard", "words"], {}, "standard and words have different tokenizers"),
    (["standard", "deeper"], {}, "runs of 2 and 3 layers cannot be compared layer by layer"),
    (["standard", "standard"], {}, "a run was given twice"),
    (["standard"], {"batches": 0}, "expected at least 1 sequence"),
    (["standard"], {"length": (1,)}, "at least 2 tokens"),
    (["standard"], {"length": (300,), "split": "train"}, "longer than the model's 256 learned positions"),
    (["standard"], {"corpus": "SHELF/short.txt", "split": "train"}, "has 10 tokens, but a window takes 16"),
    (["standard"], {"figures": True, "layers": (2,)}, "there is no layer 2: the model has layers 0 to 1"),
    (["standard"], {"figures": True, "heads": (4,)}, "there is no head 4: the model has heads 0 to 3"),
]  # fmt: skip


@pytest.mark.parametrize(("names", "options", "says"), MISTAKES, ids=[says for *_, says in MISTAKES])
def test_bad_arguments_are_reported_and_nothing_is_written(
    names: list[str], options: dict, says: str, shelf: Path
) -> None:
    if "corpus" in options:
        options = {**options, "corpus": options["corpus"].replace("SHELF", str(shelf))}
    with pytest.raises(CoupledQKError, match=says):
        analyze(shelf, *names, **options)
    assert not Path("analysis").exists(), "nothing is written"
