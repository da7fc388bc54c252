"""Out-of-range settings are rejected before memory is allocated, overflows are detected, and NaN propagates."""

import math
from dataclasses import replace

import pytest
import torch

from coupledqk import evolve
from coupledqk.cli import main
from coupledqk.config import RunConfig
from coupledqk.errors import CoupledQKError, DivergedError
from coupledqk.measure import PERPLEXITY
from coupledqk.model import TransformerLM
from coupledqk.recipes import recipe
from coupledqk.tasks.models import new_model
from coupledqk.training.checkpoints import Checkpoints
from coupledqk.training.loop import DivergenceWatch
from coupledqk.variants import VARIANTS, preset

ABSURD = [
    ("n_layers", 10**8), ("n_layers", -1), ("d_model", 10**9), ("vocab_size", 10**12), ("n_positions", 2**40),
    ("batch_size", 10**20), ("steps", 10**20), ("max_tokens", 10**20), ("micro_batch", 10**20), ("threads", 10**8),
    ("seed", 10**20), ("seq_len", 2**40), ("lr", math.inf), ("lr", math.nan),
    ("weight_decay", math.inf), ("weight_decay", math.nan), ("clip", math.inf),
    ("force_std", math.inf), ("force_std", math.nan), ("step_size", math.exp(20)), ("step_size", math.nan), ("n_steps", 10**8),
    ("tokenizer", "bpe:" + "9" * 5000),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), ABSURD, ids=[f"{name}={str(value)[:12]}" for name, value in ABSURD])
def test_out_of_range_settings_are_refused(name: str, value: object) -> None:
    with pytest.raises(CoupledQKError, match=f"{name}=.*expected") as refused:
        recipe("nano", "hamiltonian", **{name: value})
    assert len(str(refused.value)) < 200


def test_batches_and_models_too_large_for_any_memory_are_refused() -> None:
    with pytest.raises(CoupledQKError, match="tokens in a batch"):
        recipe("nano", seq_len=2**20, n_positions=2**20, batch_size=2**20)
    huge: RunConfig = recipe("nano", d_model=2**20, d_ff=2**20, n_heads=16, n_layers=4096, device="cpu")
    with pytest.raises(CoupledQKError, match=r"about [\d,]+ parameters, which need [\d,.]+ GB of memory"):
        new_model(huge)


@pytest.mark.parametrize(
    "words",
    [
        ["mqar", "--jobs", "100000000"],
        ["data", "info", "--jobs", "100000000"],
        ["mqar", "--seeds", "0-99999999999"],
        ["mqar", "--steps", "99999999999999999999"],
    ],
    ids=" ".join,
)
def test_out_of_range_flags_are_refused_in_one_line(
    words: list[str], tmp_path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        main(words)
    said = capsys.readouterr().err
    assert end.value.code == 2
    assert said.count("\n") == 1
    assert "expected" in said


def test_an_out_of_range_step_size_is_refused_by_evolve_and_when_weights_are_loaded() -> None:
    q = torch.ones(1, 2, 1, 4)
    with pytest.raises(CoupledQKError, match="expected at most 1000"):
        evolve(q, q, math.exp(20), torch.nn.Identity())
    model = small("hamiltonian")
    name = next(name for name in model.state_dict() if name.endswith("tau"))
    for tau in (20.0, math.inf, math.nan):
        weights = {**model.state_dict(), name: torch.full_like(model.state_dict()[name], tau)}
        with pytest.raises(RuntimeError, match="at most 1000"):
            model.load_state_dict(weights)
    model.load_state_dict({**model.state_dict(), name: torch.full_like(model.state_dict()[name], -20.0)})


def small(variant: str) -> TransformerLM:
    return TransformerLM(
        preset("nano", variant, d_model=32, n_heads=4, n_layers=2, d_ff=32, vocab_size=50, n_positions=8)
    )


@pytest.mark.parametrize("variant", VARIANTS)
def test_an_overflow_in_fp16_gives_a_finite_loss_or_is_reported(variant: str, tmp_path) -> None:
    """If activations exceed float16's 65,504, the loss is finite, or training ends with a message."""
    model = small(variant)
    tokens = torch.arange(16).view(2, 8)
    watch = DivergenceWatch(math.log(50), Checkpoints(tmp_path, keep=1))
    for scale in (1.0, 1e2, 1e4, 1e8):
        with torch.no_grad():
            for parameter in (p for name, p in model.named_parameters() if name.endswith(("weight", "w1", "w2"))):
                parameter.mul_(scale)
        with torch.no_grad(), torch.autocast("cpu", torch.float16):
            loss = float(model(tokens, tokens))
        if not math.isfinite(loss):
            with pytest.raises(DivergedError, match="the loss became"):
                watch.loss(1, loss)
            return
        assert loss >= 0


@pytest.mark.parametrize("variant", VARIANTS)
def test_nan_propagates_to_later_tokens_of_the_same_sequence_only(variant: str) -> None:
    model = small(variant)
    with torch.no_grad():
        model.embed.weight[3] = math.nan
    states = model.hidden(torch.tensor([[1, 2, 3, 4], [1, 2, 4, 4]]))
    assert states[0, 2:].isnan().all()
    assert states[1].isfinite().all(), "other sequences are not concerned"


def test_a_measure_with_too_many_decimals_is_refused() -> None:
    with pytest.raises(CoupledQKError, match="decimals=4000000000: expected at most 15"):
        replace(PERPLEXITY, decimals=4_000_000_000)
