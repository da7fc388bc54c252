"""Benchmarks: relative speeds, refusal of wrong numerics, and result files."""

import csv
import json
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coupledqk.bench import check, results, throughput
from coupledqk.bench.benchmark import Benchmark, paper_ratios
from coupledqk.bench.charts import charts
from coupledqk.bench.contenders import Contender, Setup, our_contenders, peer_contenders
from coupledqk.bench.memory import peak_memory
from coupledqk.bench.records import Memory, Quartiles, read_result
from coupledqk.bench.tables import report
from coupledqk.bench.timing import round_robin, speeds
from coupledqk.cli import main
from coupledqk.dynamics import fused
from coupledqk.errors import CoupledQKError

COMMITTED = sorted((Path(__file__).parents[1] / "results" / "bench").glob("*.json"))
SMALL = ["--preset", "nano", "--vocab", "97", "--batch", "2", "--seq-len", "32", "--rounds", "2", "--device", "cpu"]
SMALL += ["--threads", "1"]


@pytest.fixture
def memory_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces the memory measurement, which starts a process for each contender, by a constant."""
    monkeypatch.setattr(throughput, "peak_memory", lambda contender, setup: Memory(2.0, 1.0, setup.batch))


def bench(capsys: pytest.CaptureFixture[str], *flags: str) -> dict:
    main(["bench", *SMALL, *flags, "--json"])
    return json.loads(capsys.readouterr().out)


def refusal(capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    with pytest.raises(SystemExit) as stopped:
        main(["bench", *SMALL, *flags])
    assert stopped.value.code == 2
    said = capsys.readouterr()
    assert not said.out
    return said.err.splitlines()[-1]


@given(st.lists(st.floats(0.5, 50), min_size=1, max_size=9))
def test_slow_rounds_do_not_change_the_ratios(slowness: list[float]) -> None:
    times = {"standard": [3.0 * s for s in slowness], "euler": [4.0 * s for s in slowness]}
    found = speeds(times, "standard", tokens=12)
    assert found["euler"].relative.median == pytest.approx(0.75)
    assert found["euler"].relative.low == pytest.approx(found["euler"].relative.high)
    assert found["standard"].relative.median == 1


def test_the_ratio_is_the_median_of_ratios_and_not_a_ratio_of_medians() -> None:
    found = speeds({"standard": [1.0, 2.0, 9.0], "euler": [2.0, 8.0, 1.0]}, "standard", tokens=8)["euler"]
    assert found.relative.median == 0.5  # of 1/2, 1/4 and 9; the medians alone would give 2/2
    assert (found.relative.low, found.relative.high) == (0.375, 4.75)
    assert found.tokens_per_second == 4


def test_the_quartiles_of_one_round_are_its_value() -> None:
    assert Quartiles.of([0.9]).low == Quartiles.of([0.9]).high == 0.9


def test_every_round_times_each_contender_once_in_rotating_order() -> None:
    calls: list[str] = []
    runs = {name: lambda name=name: calls.append(name) or float(len(calls)) for name in "abc"}
    times = round_robin(runs, rounds=3)
    assert "".join(calls) == "abcbcacababc"  # the first round is the warm-up
    assert times == {"a": [6.0, 8.0, 10.0], "b": [4.0, 9.0, 11.0], "c": [5.0, 7.0, 12.0]}


def test_the_command_measures_saves_and_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["bench", *SMALL, "--variants", "hamiltonian", "--memory-batch", "1", "--save", str(tmp_path)])
    printed = capsys.readouterr().out
    assert "Forward + backward, 2 × 32 tokens" in printed
    assert "Peak memory of forward + backward, 1 × 32 tokens" in printed
    (kept,) = tmp_path.glob("*-throughput.json")
    result = json.loads(kept.read_text())
    about = result["about"]
    assert kept.name == f"{about['date'][:10]}-throughput.json"
    assert about["machine"] in printed
    assert about["versions"]["torch"] == torch.__version__
    assert (about["threads"], about["precision"], about["rounds"], about["device"]) == (1, "fp32", 2, "cpu")
    assert [row["name"] for row in result["rows"]] == ["standard", "hamiltonian"]
    for row in result["rows"]:
        assert row["forward"]["tokens_per_second"] > 0
        assert row["training"]["tokens_per_second"] > 0
        assert len(row["training"]["seconds"]) == 2
        # weights and gradients, minus memory that the warm-up left in the allocator
        assert row["memory"]["peak_mb"] > 4 * row["parameters"] / 1e6
        assert row["memory"]["batch"] == 1
    assert result["rows"][1]["arithmetic"]["recomputing"] < result["rows"][1]["arithmetic"]["training"] < 1
    assert json.loads(json.dumps(asdict(read_result(kept)))) == result
    lines = list(csv.DictReader(kept.with_suffix(".csv").open()))
    assert [line["name"] for line in lines] == ["standard", "hamiltonian"]
    assert float(lines[1]["training.relative.median"]) == result["rows"][1]["training"]["relative"]["median"]
    assert "hamiltonian" in "".join(ElementTree.parse(kept.with_suffix(".svg")).getroot().itertext())


def assert_contains(record: object, written: object) -> None:
    """A record has all values of its file; a file of an earlier format lacks some keys."""
    if isinstance(written, dict):
        assert isinstance(record, dict)
        for key, value in written.items():
            assert_contains(record[key], value)
    elif isinstance(written, list):
        assert isinstance(record, list)
        assert len(record) == len(written)
        for part, value in zip(record, written, strict=True):
            assert_contains(part, value)
    else:
        assert record == written


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.name)
def test_a_committed_result_can_be_read_printed_and_drawn(path: Path) -> None:
    result = read_result(path)
    assert_contains(json.loads(json.dumps(asdict(result))), json.loads(path.read_text()))
    assert all(row.name in report(result) for row in result.rows)
    assert {f"{path.stem}{suffix}.svg" for suffix in charts(result)} <= {other.name for other in path.parent.iterdir()}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nonsense", "not JSON"),
        ("[]", "unknown what None"),
        ('{"what": "speed"}', "unknown what 'speed'"),
        ('{"what": "decode", "about": {}}', "is damaged: baseline is missing"),
    ],
)
def test_a_file_that_is_not_a_result_is_refused_by_name(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(text)
    with pytest.raises(CoupledQKError, match=says) as raised:
        read_result(tmp_path / "result.json")
    assert "result.json" in str(raised.value)


@pytest.mark.usefixtures("memory_guessed")
def test_a_second_result_of_a_day_does_not_replace_the_first(tmp_path: Path) -> None:
    for _ in range(2):
        main(["bench", *SMALL, "--variants", "standard", "--save", str(tmp_path)])
    assert sorted(path.name[10:] for path in tmp_path.glob("*.json")) == ["-throughput-2.json", "-throughput.json"]


@pytest.mark.usefixtures("memory_guessed")
def test_sweeps_over_length_steps_width_and_depth_are_measured_and_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = ["--save", str(tmp_path)]
    rows = bench(capsys, "--lengths", "8", "16", "--variants", "euler", *kept)["rows"]
    assert [(row["name"], row["seq_len"]) for row in rows] == [
        ("standard", 8), ("euler", 8), ("standard", 16), ("euler", 16)
    ]  # fmt: skip
    rows = bench(capsys, "--n-steps", "1", "2", "--variants", "euler", "--impl", "reference", "fused", *kept)["rows"]
    assert [(row["name"], row["n_steps"]) for row in rows] == [
        ("standard", None),
        ("euler (reference)", 1), ("euler (fused)", 1), ("euler (reference)", 2), ("euler (fused)", 2),
    ]  # fmt: skip
    assert rows[1]["arithmetic"]["training"] > rows[3]["arithmetic"]["training"]
    rows = bench(capsys, "--widths", "64", "128", "--variants", "standard", "--training-only", *kept)["rows"]
    assert [(row["d_model"], row["forward"], row["relative_memory"]) for row in rows] == [(64, None, 1), (128, None, 1)]
    rows = bench(capsys, "--depths", "1", "3", "--variants", "gqa", "--memory-batch", "0", *kept)["rows"]
    assert [(row["name"], row["n_layers"], row["memory"]) for row in rows] == [
        ("standard", 1, None), ("gqa", 1, None), ("standard", 3, None), ("gqa", 3, None)
    ]  # fmt: skip
    drawn = {path.name[11:] for path in tmp_path.glob("*.svg")}
    expected = {f"{what}-{y}.svg" for what in ("lengths", "n-steps", "widths") for y in ("time", "speed", "memory")}
    assert drawn == expected | {"depths-time.svg", "depths-speed.svg"}


@pytest.mark.usefixtures("memory_guessed")
def test_a_gpu_report_is_a_code_block_to_paste_into_an_issue(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "device_name", lambda device: "cuda (Some GPU)")
    main(["bench", *SMALL, "--variants", "standard"])
    before, block, after = capsys.readouterr().out.split("```")
    assert "paste it into an issue" in before
    assert "cuda (Some GPU)" in block
    assert "tokens/s" in block
    assert not after.strip()


def test_speed_and_memory_ratios_of_the_paper_are_known_for_its_variants() -> None:
    hamiltonian, euler = paper_ratios("hamiltonian"), paper_ratios("euler")
    assert hamiltonian is not None
    assert euler is not None
    assert (round(hamiltonian.training, 2), round(hamiltonian.peak_mb, 2)) == (0.82, 1.42)
    assert round(euler.forward, 2) == 0.84
    assert paper_ratios("llama") is None


@pytest.mark.usefixtures("memory_guessed")
def test_peers_are_timed_in_the_same_rounds(capsys: pytest.CaptureFixture[str]) -> None:
    peers = ["llama", "x-transformers", "diffllama", "nanogpt"]
    result = bench(capsys, "--variants", "standard", "--peers", *peers)
    rows = {row["name"]: row for row in result["rows"]}
    assert list(rows) == ["standard", *peers]
    assert {"transformers", "x-transformers"} < result["about"]["versions"].keys()
    standard = rows["standard"]["parameters"]
    position_table = 2048 * 128
    assert rows["llama"]["parameters"] == standard - position_table
    assert rows["nanogpt"]["parameters"] == standard
    assert abs(rows["x-transformers"]["parameters"] - standard) < 0.02 * standard  # a bias in SwiGLU
    assert rows["diffllama"]["arithmetic"]["training"] < rows["llama"]["arithmetic"]["training"] == 1

    result = bench(capsys, "--decode", "--prompt", "5", "--new-tokens", "4", "--variants", "euler", "--peers", *peers)
    assert result["baseline"] == "llama"
    assert {row["name"]: row["decode"]["relative"]["median"] for row in result["rows"]}["llama"] == 1
    assert [row["name"] for row in result["rows"]] == ["standard", "euler", *peers]


def test_a_peer_computes_its_loss_on_the_given_targets() -> None:
    setup = Setup(batch=2, seq_len=6)
    tokens, targets = setup.random_batch(31)
    for contender in peer_contenders("nano", ["llama", "x-transformers"], vocab_size=31):
        model = contender.build("cpu")
        logits = model.model(tokens).logits if contender.name == "llama" else model.model.net(tokens)
        expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        torch.testing.assert_close(model(tokens, targets), expected)


def test_a_slightly_wrong_fused_backward_fails_the_numerics_check(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(fused.SHARE, "half kick", 0.5001)
    said = refusal(capsys, "--variants", "euler", "hamiltonian", "--impl", "fused", "--save", str(tmp_path))
    assert said.startswith("coupledqk: hamiltonian (fused) fails its numerics check: ")
    assert "no speed is reported for it" in said
    assert not list(tmp_path.iterdir())


def test_a_wrong_loss_fails_the_numerics_check(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = check.plain_loss
    monkeypatch.setattr(check, "plain_loss", lambda *arguments: 1.0001 * right(*arguments))
    assert "standard fails its numerics check: the relative error of the loss is" in refusal(
        capsys, "--variants", "standard"
    )


def test_decoding_that_deviates_from_the_model_fails_the_numerics_check(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from coupledqk.layers import KVCache

    append = KVCache.append
    monkeypatch.setattr(KVCache, "append", lambda self, k, v: append(self, k.flip(1), v.flip(1)))
    said = refusal(capsys, "--decode", "--variants", "standard", "--new-tokens", "8")
    assert "standard fails its numerics check: with the cache, its logits differ by" in said


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_correct_models_pass_the_numerics_checks(precision: str) -> None:
    setup = Setup(batch=1, seq_len=32, precision=precision)
    prompt, _ = setup.random_batch(97)
    for contender in our_contenders("nano", ["gqa", "hamiltonian_diff"], ["fused"], vocab_size=97):
        model = contender.build("cpu")
        check.check_loss(contender, model, setup)
        check.check_decoding(contender, model, prompt, 4, setup)


def test_decoding_is_relative_to_standard_without_peers() -> None:
    benchmark = Benchmark("nano", 31, ("gqa",), decode=True, prompt=3, new_tokens=2, rounds=1, device="cpu", threads=1)
    rows = benchmark.measure().rows
    assert rows[0].decode.relative.median == 1
    assert rows[1].cache_bytes == rows[0].cache_bytes / 4


def test_int8_copies_are_timed_beside_their_models(capsys: pytest.CaptureFixture[str]) -> None:
    rows = bench(capsys, "--decode", "--int8", "--prompt", "5", "--new-tokens", "3", "--variants", "euler")["rows"]
    assert [row["name"] for row in rows] == ["standard", "euler", "standard (int8)", "euler (int8)"]
    assert [row["parameters"] for row in rows[2:]] == [row["parameters"] for row in rows[:2]]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--peers", "lama"], "unknown peer 'lama': did you mean 'llama'?"),
        (["--variants", "eular"], "unknown variant 'eular': did you mean 'euler'?"),
        (["--impl", "fussed"], "unknown impl 'fussed': did you mean 'fused'?"),
        (["--preset", "smal"], "unknown preset 'smal': did you mean 'small'?"),
        (["--lengths", "8", "--decode"], "--depths and --decode are separate measurements: give one of them"),
        (["--launches", "0"], "launches=0: expected at least 1"),
        (["--until", "0"], "until=0.0: expected a number above 0"),
        (["--minutes", "3"], "--minutes limits the time of the launches: give --launches or --until as well"),
        (["--compile", "--decode"], "--compile does not support decoding: leave out --decode"),
        (["--int8"], "--int8 applies to decoding only: give --decode as well"),
        (["--widths", "100"], "widths=100: expected multiples of 64"),
        (["--depths", "0"], "depths=0: expected at least 1"),
        (["--rounds", "0"], "rounds=0: expected at least 1"),
        (["--batch", "0"], "batch=0: expected at least 1"),
        (["--lengths", "8", "0"], "seq_len=0: expected at least 1"),
        (["--n-steps", "0"], "n_steps=0: expected at least 1"),
        (["--device", "cuda:77"], "device 'cuda:77' cannot be used here"),
    ],
)
def test_bad_arguments_give_one_line_errors(flags: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert said in refusal(capsys, *flags)


@pytest.mark.parametrize(("peer", "library"), [("llama", "transformers"), ("x-transformers", "x_transformers")])
def test_the_error_for_a_missing_peer_names_the_extra(
    peer: str, library: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    assert "pip install 'coupledqk[bench]'" in refusal(capsys, "--peers", peer)


def test_the_reason_is_given_if_memory_cannot_be_measured() -> None:
    (contender,) = our_contenders("nano", [], vocab_size=31)
    with pytest.raises(ValueError, match=r"the memory of standard could not be measured .*a smaller batch"):
        peak_memory(Contender("standard", contender.config, impl="auto", peer="none"), Setup(1, 4))
