"""Figures show the given numbers in one style, and do not change matplotlib's global state."""

import itertools
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from coupledqk.analysis.figures import attention_figure, convergence_figure, drawn_maps, entropy_figure, rank_figure
from coupledqk.analysis.style import COLOURS, DASHES, HATCHES, MARKERS, look, save, styled
from coupledqk.config import RunConfig
from coupledqk.errors import CoupledQKError
from coupledqk.run_folder import RunFolder
from coupledqk.variants import preset

matplotlib = pytest.importorskip("matplotlib")

PROFILES = {"standard": [1.0, 4.0, 2.0], "euler": [2.0, 3.0, 2.5]}


@pytest.fixture
def runs(tmp_path: Path) -> dict[str, Path]:
    """Two run folders whose losses are known."""
    for i, name in enumerate(PROFILES):
        run = RunFolder(tmp_path / name)
        run.create(RunConfig())
        train = [{"kind": "train", "step": step, "loss": 9 - step / 100 - i} for step in range(0, 600, 2)]
        valid = [{"kind": "valid", "step": step, "loss": 6 - step / 100 - i} for step in (100, 200, 300)]
        (run.path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in (*train, *valid)))
    return {name: tmp_path / name for name in PROFILES}


def lines(axes) -> dict[str, tuple[list[float], list[float]]]:
    return {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in axes.get_lines()}


def test_entropy_has_a_line_per_run_and_a_point_per_layer():
    [axes] = entropy_figure(PROFILES).axes
    assert lines(axes) == {name: ([0, 1, 2], values) for name, values in PROFILES.items()}
    low, high = axes.get_ylim()
    assert low == 0
    assert high > 4, "the largest value is inside"


def test_rank_has_a_bar_per_run_and_layer_and_the_means():
    [axes] = rank_figure(PROFILES).axes
    heights = [[bar.get_height() for bar in bars] for bars in axes.containers]
    assert heights == [[*values, pytest.approx(np.mean(values))] for values in PROFILES.values()]
    edges = sorted((bar.get_x(), bar.get_x() + bar.get_width()) for bars in axes.containers for bar in bars)
    assert all(right <= left + 1e-9 for (_, right), (left, _) in itertools.pairwise(edges)), "none overlap"
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0", "1", "2", "mean"]


def test_runs_of_different_depth_are_not_drawn_together():
    with pytest.raises(CoupledQKError, match="profiles of 2, 3 layers"):
        entropy_figure({**PROFILES, "shallow": [1.0, 2.0]})


def causal_maps(signed: bool) -> torch.Tensor:
    scores = torch.randn(2, 3, 9, 9).masked_fill(torch.ones(9, 9, dtype=torch.bool).triu(1), -math.inf)
    maps = scores.softmax(-1)
    return maps - 0.8 * maps.roll(1, dims=0) if signed else maps


@pytest.mark.parametrize("signed", [False, True])
def test_heat_maps_share_one_scale_and_mask_future_tokens(signed):
    maps = causal_maps(signed)
    *panels, _ = attention_figure(maps, [0, 7], [0, 1, 3]).axes
    assert [axes.get_title(loc="left") for axes in panels[::4]] == ["layer 0, head 0", "layer 7, head 1"]
    images = [axes.images[0] for axes in panels]
    for image, one_map in zip(images, maps.flatten(0, 1), strict=True):
        shown = image.get_array()
        assert np.array_equal(shown.mask, np.triu(np.ones((9, 9), bool), 1))
        np.testing.assert_array_equal(shown.filled(0), one_map.numpy())
    assert {image.get_clim() for image in images} == {(-1, 1) if signed else (1 / 81, 1)}
    assert {image.get_cmap().name for image in images} == {"PuOr_r" if signed else "viridis"}


def test_the_full_map_of_an_encoder_is_shown():
    panel, _ = attention_figure(torch.full((1, 1, 4, 4), 0.25), [0], [0]).axes
    assert not np.ma.getmaskarray(panel.images[0].get_array()).any()


def test_the_papers_maps_are_drawn_if_the_model_has_them():
    assert drawn_maps(preset("small")) == ([0, 4, 7], [0, 1, 2, 3])
    assert drawn_maps(preset("nano", n_layers=1, n_heads=2)) == ([0], [0, 1])
    assert drawn_maps(preset("small"), layers=[7, 2], heads=[5]) == ([7, 2], [5])
    with pytest.raises(CoupledQKError, match="there is no layer 8: the model has layers 0 to 7"):
        drawn_maps(preset("small"), layers=[0, 8])
    with pytest.raises(CoupledQKError, match="there is no head -1: the model has heads 0 to 7"):
        drawn_maps(preset("small"), heads=[-1])


def test_convergence_draws_training_and_validation_perplexity(runs):
    train, valid = convergence_figure(runs).axes
    assert (train.get_title(loc="left"), valid.get_title(loc="left")) == ("training", "validation")
    assert lines(valid)["euler"] == ([100, 200, 300], pytest.approx([math.exp(5 - n) for n in (1, 2, 3)]))
    steps, values = lines(train)["standard"]
    assert len(steps) <= 150
    for step, value in zip(steps, values, strict=True):
        assert value == pytest.approx(math.exp(9 - step / 100), rel=0.02)


def test_convergence_can_be_cropped(runs):
    train, valid = convergence_figure(runs, from_step=150, max_perplexity=50).axes
    assert min(lines(valid)["euler"][0]) == 200
    assert min(lines(train)["euler"][0]) >= 150
    assert train.get_ylim()[1] == 50
    with pytest.raises(CoupledQKError, match="no valid record from step 301 on"):
        convergence_figure(runs, from_step=301)
    with pytest.raises(CoupledQKError, match="every perplexity is above 2"):
        convergence_figure(runs, max_perplexity=2)


def test_runs_differ_in_more_than_colour():
    assert len({look(place)["marker"] for place in range(8)}) == 8
    assert len({look(place)["color"] for place in range(8)}) == 8
    assert len(set(COLOURS)) == len(set(MARKERS)) == len(set(HATCHES)) == len(DASHES) == 8


def test_saving_writes_three_formats_reproducibly(tmp_path):
    figure = entropy_figure(PROFILES)
    written = save(figure, tmp_path / "new" / "entropy")
    assert [path.name for path in written] == ["entropy.svg", "entropy.pdf", "entropy.png"]
    before = [path.read_bytes() for path in written]
    assert [content[:4] for content in before] == [b"<?xm", b"%PDF", b"\x89PNG"]
    assert [path.read_bytes() for path in save(entropy_figure(PROFILES), tmp_path / "new" / "entropy")] == before
    assert len(list((tmp_path / "new").iterdir())) == 3, "nothing temporary is left"


def test_the_style_does_not_leak():
    before = dict(matplotlib.rcParams)
    rank_figure(PROFILES)
    assert dict(matplotlib.rcParams) == before


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(CoupledQKError, match=r"pip install 'coupledqk\[plot\]'"), styled():
        pass
