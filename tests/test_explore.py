"""The explorer's bundle agrees with the model, and the command accepts any text."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from conftest import tiny_model
from coupledqk.analysis import LayerTape, loss_effects, record
from coupledqk.analysis.motion import attention_moved, k_turned, q_moved
from coupledqk.cli.explore import Explore
from coupledqk.data.tokenizers import byte_tokenizer, train_bpe
from coupledqk.errors import CoupledQKError
from coupledqk.explore import bundle as bundles
from coupledqk.explore.bundle import MOST_TOKENS, Reader, make_bundle, make_effects, open_readers
from coupledqk.explore.motion import NUMBERS, UNITS, motion_numbers, plane_paths, states_of
from coupledqk.explore.packing import UNIT, pack, unpack, weight_codes
from coupledqk.explore.server import Server
from coupledqk.explore.tour import find_stops
from coupledqk.model import TransformerLM
from coupledqk.recipes import recipe
from coupledqk.run_folder import RunFolder
from coupledqk.training.checkpoints import Checkpoints

TEXT = "the cat and the dog"
HOSTILE = (
    "</script><script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">"
    "\x00\u202eab&lt;שלום👩\u200d🔬\n\t"
)


def reader(variant: str = "standard", name: str = "", **settings: Any) -> Reader:
    settings = {"vocab_size": 257, "n_layers": 2, "n_heads": 4, **settings}
    return Reader(name or variant, variant, "best", tiny_model(variant, **settings).eval(), byte_tokenizer())


def layers(reader: Reader, text: str = TEXT) -> list[LayerTape]:
    with torch.no_grad(), record(reader.model) as tape:
        reader.model(torch.tensor([reader.tokenizer.encode(text)]))
    return tape.layers


def patterns(reader: Reader, text: str = TEXT) -> Tensor:
    return torch.stack([layer.pattern()[0] for layer in layers(reader, text)]).detach()


def stored_weights(run: dict[str, Any], n_tokens: int) -> Tensor:
    shape = (len(run["map_steps"]), run["n_layers"], run["n_heads"], n_tokens, n_tokens)
    roots = unpack(run["maps"], *shape).double() / UNIT
    return roots * roots.abs()


@given(st.floats(-2, 2))
def test_the_rounding_error_of_stored_weights_is_bounded(weight: float) -> None:
    code = float(weight_codes(torch.tensor(weight, dtype=torch.float64))) / UNIT
    assert abs(code * abs(code) - weight) <= math.sqrt(abs(weight)) / UNIT + 1 / UNIT**2


def test_packed_numbers_round_trip_and_are_compact() -> None:
    scores = torch.randn(64, 256, 256).masked_fill(~torch.ones(256, 256, dtype=torch.bool).tril(), -math.inf)
    codes = weight_codes((2 * scores).softmax(-1))
    text = pack(codes)
    assert torch.equal(unpack(text, *codes.shape), codes)
    assert len(text) < 4_500_000, "64 maps of 256 tokens"


@pytest.mark.parametrize("variant", ["standard", "gqa", "diff", "euler", "hamiltonian_diff", "affine"])
def test_the_maps_of_every_step_equal_the_models_to_the_stored_precision(variant: str) -> None:
    subject = reader(variant)
    exact = torch.stack([layer.patterns()[:, 0] for layer in layers(subject)], dim=1)
    [run] = make_bundle([subject], TEXT)["runs"]
    assert run["map_steps"] == list(range(run["n_steps"] + 1))
    assert run["n_steps"] == {"standard": 0, "gqa": 0, "diff": 0, "affine": 1}.get(variant, 3)
    error = (stored_weights(run, len(TEXT)) - exact).abs()
    assert (error <= exact.abs().sqrt() / UNIT + 1 / UNIT**2).all()
    assert run["signed"] == bool((exact < 0).any())


def test_intermediate_steps_are_left_out_of_a_page_that_would_be_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = reader("euler")
    monkeypatch.setattr(bundles, "MOST_WEIGHTS", 1000)
    [run] = make_bundle([subject], TEXT)["runs"]
    assert (run["n_steps"], run["map_steps"]) == (3, [0, 3])
    torch.testing.assert_close(stored_weights(run, len(TEXT))[1], patterns(subject), atol=1e-3, rtol=0)


def test_the_change_by_coupling_equals_that_of_the_analysis() -> None:
    subject = reader("hamiltonian_gqa")
    [run] = make_bundle([subject], TEXT)["runs"]
    measured = torch.stack([attention_moved(layer)[0] for layer in layers(subject)])
    torch.testing.assert_close(torch.tensor(run["changed"], dtype=torch.float64), measured, atol=1e-4, rtol=0)
    dt = torch.stack([layer.integrator.step_size for layer in layers(subject)])
    assert run["step_size"] == [[pytest.approx(row[0].item(), abs=1e-4)] * 4 for row in dt], "4 heads share a key head"


def test_a_run_without_dynamics_has_no_motion() -> None:
    [run] = make_bundle([reader()], TEXT)["runs"]
    assert run["changed"] is run["motion"] is run["step_size"] is None
    assert [stop["kind"] for stop in run["tour"]] == ["previous", "induction", "sink"]


def test_paths_start_at_the_projected_and_end_at_the_evolved_q_and_k() -> None:
    [layer, *_] = layers(
        reader("drift")
    )  # without a force all states lie in one plane, so the projection loses nothing
    points, held = plane_paths(*states_of(layer))
    assert held.min() == pytest.approx(1)
    for step, (q, k) in {0: (layer.q, layer.k), -1: (layer.evolved_q, layer.evolved_k)}.items():
        drawn_q, drawn_k = points[:, :, step].chunk(2, dim=-1)  # (H, T, 2)
        q, k = (x[0].transpose(0, 1) for x in (q, k))  # (H, T, d)
        for drawn, true in (((drawn_q, drawn_q), (q, q)), ((drawn_k, drawn_k), (k, k)), ((drawn_q, drawn_k), (q, k))):
            torch.testing.assert_close((drawn[0] * drawn[1]).sum(-1), (true[0] * true[1]).sum(-1))


@pytest.mark.parametrize("variant", ["euler", "hamiltonian", "euler_diff", "hamiltonian_gqa", "mlp_only", "affine"])
def test_no_plane_through_two_states_preserves_more_than_the_chosen_one(variant: str) -> None:
    [layer, *_] = layers(reader(variant))
    q, k = states_of(layer)
    points, held = plane_paths(q, k)
    true = torch.cat((q, k), dim=2)
    torch.testing.assert_close(points.square().sum((2, 3)), held * true.square().sum((2, 3)))
    assert held.max() <= 1 + 1e-12
    for pair in torch.combinations(torch.arange(true.shape[2])):
        basis = torch.linalg.qr(true[:, :, pair].mT).Q
        assert ((true @ basis).square().sum((2, 3)) <= held * true.square().sum((2, 3)) * (1 + 1e-9)).all()


def test_paths_of_q_start_on_the_right_and_paths_of_k_above() -> None:
    points, _ = plane_paths(*states_of(layers(reader("hamiltonian"))[1]))
    q_x, q_y, _, k_y = points[:, :, 0].unbind(-1)
    assert (q_x > 0).all()
    assert q_y.abs().max() < 1e-9
    assert (k_y >= 0).all()


def test_the_stored_motion_equals_that_of_every_layer_and_sub_head() -> None:
    subject = reader("euler_diff")
    [run] = make_bundle([subject], TEXT)["runs"]
    motion, scale = run["motion"], torch.tensor(run["motion"]["scale"], dtype=torch.float64)
    assert (run["n_steps"], motion["parts"]) == (3, 2)
    stored = unpack(motion["points"], 2, 8, len(TEXT), 4, 4) * scale[..., None, None, None]
    held = unpack(motion["held"], 2, 8, len(TEXT)) / 10_000
    numbers = unpack(motion["numbers"], 2, 8, len(TEXT), 4, 7) * torch.tensor(UNITS, dtype=torch.float64)
    for i, layer in enumerate(layers(subject)):
        points, exactly_held = plane_paths(*states_of(layer))
        assert ((stored[i] - points).abs() <= scale[i, :, None, None, None]).all()
        torch.testing.assert_close(held[i].double(), exactly_held, atol=1e-4, rtol=0)
        exact = motion_numbers(*states_of(layer))
        assert ((numbers[i] - exact).abs() <= torch.tensor(UNITS, dtype=torch.float64)).all()


def test_the_numbers_of_the_last_step_equal_those_of_the_analysis() -> None:
    [layer, *_] = layers(reader("hamiltonian"))
    last = dict(zip(NUMBERS, motion_numbers(*states_of(layer))[:, :, -1].unbind(-1), strict=True))
    torch.testing.assert_close(last["q_moved"].mean(1), q_moved(layer)[0])
    torch.testing.assert_close(last["k_turned"].mean(1), k_turned(layer)[0])


def test_the_effects_equal_those_of_interventions_on_this_text() -> None:
    subject = reader("hamiltonian")
    [effects] = make_effects([subject], TEXT)
    assert effects is not None
    assert effects["loss"] == loss_effects(subject.model, torch.tensor([subject.tokenizer.encode(TEXT)])).loss
    assert make_effects([subject, reader()], "x") == [None, None]
    [cut] = make_effects([reader(n_positions=8)], TEXT, cut=True)
    [short] = make_effects([reader(n_positions=8)], TEXT[:8])
    assert cut == short


def one_hot_rows(keys: list[int]) -> Tensor:
    """A map in which query t attends to keys[t] only."""
    return torch.eye(len(keys))[keys]


def test_the_tour_finds_heads_with_known_patterns() -> None:
    tokens = [5, 6, 7, 5, 6, 7, 5]
    itself = one_hot_rows(list(range(7)))
    previous = one_hot_rows([0, 0, 1, 2, 3, 4, 5])
    induction = one_hot_rows([0, 1, 2, 1, 2, 3, 4])  # what followed the token's last occurrence
    sink = one_hot_rows([0] * 7)
    after = torch.stack([torch.stack([itself, previous]), torch.stack([induction, sink])])  # 2 layers of 2 heads
    before = after.clone()
    before[0, 0, 4] = sink[4]  # coupling changes one row of layer 0, head 0
    stops = {stop.kind: stop for stop in find_stops(torch.stack([before, after]), tokens)}
    found = {kind: (stop.layer, stop.head) for kind, stop in stops.items()}
    assert found == {"previous": (0, 1), "induction": (1, 0), "sink": (1, 1), "changed": (0, 0)}
    assert stops["previous"].share == stops["induction"].share == stops["sink"].share == 1
    assert stops["changed"].share == pytest.approx(1 / 7)
    assert stops["changed"].query == 4
    assert (stops["induction"].query, stops["induction"].key) == (3, 1)
    assert stops["previous"].even == pytest.approx(sum(1 / (t + 1) for t in range(1, 7)) / 6)


def test_a_tour_stop_states_the_share_of_the_head_before_coupling() -> None:
    previous, sink = one_hot_rows([0, 0, 1, 2]), one_hot_rows([0, 0, 0, 0])
    [stop, *_] = find_stops(torch.stack([sink, previous])[:, None, None], [1, 2, 3, 4])
    assert (stop.kind, stop.share, stop.before) == ("previous", 1, pytest.approx(1 / 3))


def test_tour_stops_that_a_text_cannot_show_are_left_out() -> None:
    maps = torch.eye(1).expand(2, 1, 1, 1, 1)
    assert [stop.kind for stop in find_stops(maps, [3])] == ["changed"]
    assert [stop.kind for stop in find_stops(torch.eye(3)[None, None, None], [1, 2, 3])] == ["previous", "sink"]


def test_a_long_text_is_truncated_on_request() -> None:
    bundle = make_bundle([reader(n_positions=8)], TEXT, cut=True)
    assert bundle["tokens"] == list(TEXT[:8])
    assert bundle["cut_from"] == len(TEXT)


def test_bytes_that_are_not_text_by_themselves_are_escaped() -> None:
    assert make_bundle([reader()], "é\ud800")["tokens"] == ["\\xc3", "\\xa9", "?"]


def test_a_text_that_cannot_be_shown_is_refused() -> None:
    with pytest.raises(CoupledQKError, match="the text is empty"):
        make_bundle([reader()], "")
    with pytest.raises(CoupledQKError, match=r"has 19 tokens and the model has 8 positions.*--cut"):
        make_bundle([reader(n_positions=8)], TEXT)
    with pytest.raises(CoupledQKError, match=f"{MOST_TOKENS + 1} tokens and the page shows {MOST_TOKENS} at most"):
        make_bundle([reader(positions="rope")], "x" * (MOST_TOKENS + 1))


def test_runs_that_tokenize_the_text_differently_are_not_shown_side_by_side() -> None:
    pairs = Reader("pairs", "standard", "best", tiny_model(vocab_size=300), train_bpe("bpe:260", [TEXT * 9]))
    with pytest.raises(CoupledQKError, match=r"different tokens \(standard: 19 by bytes, pairs: \d+ by bpe:260\)"):
        make_bundle([reader(), pairs], TEXT)


def test_attention_that_is_not_finite_is_refused() -> None:
    broken = reader()
    torch.nn.init.constant_(broken.model.embed.weight, math.nan)
    with pytest.raises(CoupledQKError, match="not finite"):
        make_bundle([broken], TEXT)


def test_the_command_refuses_what_it_cannot_load(tmp_path: Path) -> None:
    untrained = RunFolder(tmp_path / "untrained")
    untrained.create(recipe("nano"))
    with pytest.raises(CoupledQKError, match="no best checkpoint yet: train it with"):
        Explore((untrained.path,)).run()
    with pytest.raises(CoupledQKError, match="no such run folder"):
        Explore((tmp_path / "nowhere",)).run()
    for folders in ((), (untrained.path,) * 3):
        with pytest.raises(CoupledQKError, match="name one run folder, or two"):
            Explore(folders).run()
    assert not (tmp_path / "explore.html").exists()


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a checkpoint, as training leaves it."""
    run = RunFolder(tmp_path_factory.mktemp("runs") / "mine")
    run.create(recipe("nano", "euler", tokenizer="bytes", d_model=16, n_heads=2, n_layers=1, d_ff=32))
    Checkpoints(run.path / "checkpoints", keep=1).save_best(1, TransformerLM(run.config.model), {})
    (run.path / "tokenizer.json").write_text(byte_tokenizer().to_json())
    return run.path


def test_the_command_writes_one_page_with_the_bundle_inside(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Explore((run_folder, run_folder), text=HOSTILE, out=tmp_path / "page.html", device="cpu").run()
    assert f"{tmp_path / 'page.html'}: 0.2 MB" in capsys.readouterr().out
    [inside] = re.findall(
        '<script type="application/json" id="bundle">(.*)</script>', (tmp_path / "page.html").read_text()
    )
    assert json.loads(inside) == make_bundle(open_readers((run_folder, run_folder), device="cpu"), HOSTILE)


def test_a_page_does_not_replace_a_folder(run_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(CoupledQKError, match="is a folder: name a file"):
        Explore((run_folder,), out=tmp_path, device="cpu").run()


@pytest.mark.parametrize(("host", "warned"), [("127.0.0.1", False), ("localhost", False), ("0.0.0.0", True)])
def test_the_command_serves_and_warns_if_other_machines_can_connect(
    host: str, warned: bool, run_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(server: Server) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Server, "serve_forever", interrupt)
    Explore((run_folder,), serve=True, host=host, port=0, device="cpu").run()
    printed = capsys.readouterr().out
    assert "http://" in printed
    assert ("Anyone who can reach this machine" in printed) == warned


def test_two_queries_of_a_head_are_shown_as_two_parts_with_the_heads_own_step_size():
    model = tiny_model("hamiltonian_diff_v2", n_heads=4)
    with torch.no_grad(), record(model) as tape:
        model(torch.arange(5)[None])
    layer = tape.layers[0]
    q, k = states_of(layer)
    for part in range(2):
        for head in range(4):
            torch.testing.assert_close(q[part * 4 + head, :, -1], layer.evolved_q[0, :, 2 * head + part])
            torch.testing.assert_close(k[part * 4 + head, :, -1], layer.evolved_k[0, :, head])
    sizes = bundles._step_sizes(tape, n_heads=4)
    assert sizes[0] == pytest.approx(layer.integrator.step_size.tolist(), abs=1e-3)
