"""Memory estimates agree with the bytes that autograd saves, and errors are reported in one line."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import accumulate
from typing import get_args

import pytest
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile
from torch.testing._internal.distributed.fake_pg import FakeStore

from coupledqk import TransformerLM, preset
from coupledqk.cli import main
from coupledqk.config import ModelConfig, TrainConfig
from coupledqk.costs import count_parameters, flops
from coupledqk.dynamics import set_impl
from coupledqk.errors import CoupledQKError
from coupledqk.lab.cells import make_plan
from coupledqk.lab.experiment import load
from coupledqk.loss import _blockwise
from coupledqk.planning.estimate import Machine, estimate, largest, require_fit, training_hours
from coupledqk.planning.gpus import GIB, GPUS, find_gpu
from coupledqk.planning.memory import Strategy, peak_memory
from coupledqk.planning.trace import LiveBytes, Pass, kept, loss_workspace, saved_bytes
from coupledqk.recipes import recipe
from coupledqk.training import parallel
from coupledqk.training.mesh import Mesh
from coupledqk.training.optimizer import build_optimizer
from coupledqk.training.parallel import Replicated, Sharded
from coupledqk.variants import PAPER_VARIANTS

T = 128  # long enough for the CPU implementation of differential scoring
AUTOCAST = {"fp32": torch.float32, "bf16": torch.bfloat16}
POSITIONS = ["learned", "rope"]
CPU = torch.device("cpu")


def small(variant: str, **settings) -> ModelConfig:
    shape = {"d_model": 64, "n_heads": 4, "n_layers": 3, "d_ff": 96, "vocab_size": 53, "n_positions": T}
    return preset("nano", variant, **{**shape, **settings})


def really_saved(config: ModelConfig, how: Pass) -> tuple[int, int]:
    """Bytes that autograd saves in a forward pass of the real model."""
    model = TransformerLM(config)
    model.gradient_checkpointing = how.checkpointing
    set_impl(model, how.impl)
    tokens = torch.zeros(how.rows, how.seq_len, dtype=torch.long)
    autocast = torch.autocast("cpu", AUTOCAST[how.precision], enabled=how.precision != "fp32")
    with saved_bytes(model) as saved, autocast:
        model.hidden(tokens)
    return saved.activations, saved.copies


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize(
    ("variant", "impl"), [*((name, "auto") for name in PAPER_VARIANTS), ("euler", "fused"), ("hamiltonian", "fused")]
)
def test_estimated_activations_equal_what_autograd_saves(
    variant: str, impl: str, positions: str, precision: str
) -> None:
    config, how = small(variant, positions=positions), Pass(2, T, precision, impl=impl, kernels="cpu")
    found = kept(config, how)
    assert (found.activations, found.copies) == really_saved(config, how)


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("variant", PAPER_VARIANTS)
def test_with_checkpointing_a_block_saves_only_its_input(variant: str, positions: str) -> None:
    config, how = small(variant, positions=positions), Pass(2, T, checkpointing=True, kernels="cpu")
    saved, _ = really_saved(config, how)
    if positions == "rope":
        saved += (
            4 * T * 64 // 4 // (2 if variant == "diff" else 1)
        )  # cosines and sines, which checkpointing itself keeps
    assert kept(config, how).activations == pytest.approx(saved, rel=0.02)
    assert kept(config, how).activations < kept(config, replace(how, checkpointing=False)).activations / 5


def test_activations_of_standard_attention_on_a_gpu_agree_with_a_manual_count() -> None:
    config, rows = small("standard"), 2
    d, d_ff, heads = config.d_model, config.d_ff, config.n_heads
    norm = 4 * d + 4  # its input and one number
    # in half precision: normed twice, q, k, v, attention's output, gate, up, their product; in float32 the sums of softmax
    block = 2 * norm + 2 * (2 * d + 3 * d + d + 3 * d_ff) + 4 * heads
    once = norm + 8  # the final norm and the token
    found = kept(config, Pass(rows, T, "bf16"))
    assert found.activations == rows * T * (config.n_layers * block + once) + 8 * T
    matrices = config.n_layers * (4 * d * d + 3 * d * d_ff)
    assert found.copies == 2 * matrices


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_fused_hamiltonian_saves_as_many_activations_as_standard_only_in_float32(precision: str) -> None:
    how = Pass(2, T, precision, impl="fused", kernels="cpu")
    more = kept(small("hamiltonian"), how).activations - kept(small("standard"), how).activations
    inputs = 3 * 2 * T * 3 * 64 * 2  # layers, tokens, the projection to q, k and v, width, half precision
    assert more == (0 if precision == "fp32" else inputs)


@pytest.mark.parametrize("variant", ["standard", "diff", "hamiltonian"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_on_a_gpu_activations_grow_linearly_with_the_number_of_rows(variant: str, checkpointing: bool) -> None:
    one, three, five = (kept(small(variant), Pass(n, T, "bf16", checkpointing)) for n in (1, 3, 5))
    assert five.activations - three.activations == three.activations - one.activations > 0
    assert one.copies == five.copies


@pytest.mark.parametrize("precision", AUTOCAST)
@pytest.mark.parametrize("tokens", [40, 64, 1000])
def test_the_estimated_memory_of_the_loss_is_that_of_its_tensors(
    tokens: int, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    vocabulary, d = 1000, 16
    monkeypatch.setattr("coupledqk.loss.BLOCK", 64 * vocabulary)
    loss_workspace.cache_clear()
    x, weight, targets = torch.randn(tokens, d), torch.randn(vocabulary, d), torch.zeros(tokens, dtype=torch.long)
    with LiveBytes() as live:
        _blockwise._init_fn(x, weight, targets, AUTOCAST[precision], True)
    returned = x.nbytes + weight.nbytes
    assert loss_workspace(vocabulary, d, tokens, precision) + returned == pytest.approx(live.peak, rel=0.01)
    loss_workspace.cache_clear()


@pytest.fixture
def fake_job(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A job of two processes of which only this one exists: PyTorch's fake backend does not change the buffers."""

    def reduced(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        done = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    monkeypatch.setattr(parallel, "_gloo_group", lambda timeout: None)
    monkeypatch.setattr(parallel, "_sum_bucket", reduced)
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield
    dist.destroy_process_group()


def allocated_peak(step: Callable[[], None]) -> int:
    """Peak number of additional bytes that PyTorch's CPU allocator allocates during a step."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        step()
    assert recorded.profiler is not None
    assert recorded.profiler.kineto_results is not None
    events = [event for event in recorded.profiler.kineto_results.events() if event.name() == "[memory]"]
    return max(accumulate(event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())))


@pytest.mark.usefixtures("fake_job")
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("micro_batches", [1, 3])
@pytest.mark.parametrize("strategy", get_args(Strategy))
def test_the_estimated_peak_is_that_of_a_real_step(strategy: Strategy, micro_batches: int, checkpointing: bool) -> None:
    config = small("hamiltonian", n_layers=4, vocab_size=300)
    how = Pass(2, T // 2, checkpointing=checkpointing, kernels="cpu")
    mesh = {"single": Mesh, "ddp": lambda: Replicated(CPU), "fsdp": lambda: Sharded(CPU)}[strategy]()
    model = TransformerLM(config)
    model.gradient_checkpointing = checkpointing
    wrapped = mesh.wrap(model, compiled=False)
    optimizer = build_optimizer(model, TrainConfig())
    tokens = torch.zeros(how.rows, how.seq_len, dtype=torch.long)

    def step() -> None:
        for micro in range(micro_batches):
            with mesh.gradients(wrapped, last=micro == micro_batches - 1):
                wrapped(tokens, tokens).backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(2):  # creates the optimizer's state and DDP's final buckets
        step()
    found = peak_memory(config, how, micro_batches > 1, strategy, mesh.world)
    lasting = found.parts.weights + found.parts.optimizer + (found.parts.weights if strategy == "ddp" else 0)
    assert found.total == pytest.approx(lasting + allocated_peak(step), rel=0.03)


def test_fsdp_shards_the_state_and_ddp_replicates_it() -> None:
    config, how = small("hamiltonian", n_layers=12), Pass(1, T)
    one = peak_memory(config, how, True).parts
    ddp, fsdp = peak_memory(config, how, True, "ddp", 4).parts, peak_memory(config, how, True, "fsdp", 4).parts
    assert one.weights == ddp.weights == 4 * fsdp.weights == 4 * count_parameters(config)
    assert ddp.communication == ddp.gradients == 4 * fsdp.gradients
    assert ddp.optimizer == 4 * fsdp.optimizer == 2 * ddp.weights
    assert one.communication == 0 < fsdp.communication < ddp.communication


def test_largest_finds_the_largest_number_of_rows_within_a_limit() -> None:
    assert [largest(lambda n: 10 * n, limit, 8) for limit in (5, 10, 35, 79, 80, 1000)] == [0, 1, 3, 7, 8, 8]
    assert largest(lambda n: 1 if n == 4 else 10 * n, 5, 4) == 4


def test_time_is_flops_divided_by_speed_and_checkpointing_repeats_the_forward_pass() -> None:
    config, machine = recipe("wikitext-103"), Machine(find_gpu("mine", 1e14, 10), 4, 0.25)
    work = flops(config.model, 512)
    assert training_hours(config, machine, False) == pytest.approx(30_000 * 32 * 512 * work.training / 1e14 / 3600)
    extra = training_hours(config, machine, True) / training_hours(config, machine, False)
    assert extra == pytest.approx(1 + (work.forward - work.logits) / work.training)


def test_the_best_option_fits_and_one_more_row_does_not() -> None:
    config = recipe("nano", "hamiltonian")
    model = config.model
    how = Pass(5, config.train.seq_len)
    room = peak_memory(model, how, accumulates=True).total
    machine = Machine(find_gpu("mine", 1e12, 1.0001 * room / GIB / 0.9), 1, 0.5)
    best = estimate(config, machine).options[0]
    assert (best.micro_batch, best.fits) == (5, True)
    assert peak_memory(model, replace(how, rows=6), accumulates=True).total > machine.usable


@pytest.mark.parametrize(
    ("name", "listed"),
    [
        ("RTX 2080 Ti", "RTX 2080 Ti"),
        ("rtx2080ti", "RTX 2080 Ti"),
        ("NVIDIA GeForce RTX 2080 Ti", "RTX 2080 Ti"),
        ("AMD Instinct MI250X", "MI250X GCD"),
    ],
)
def test_a_gpu_is_found_by_its_usual_names(name: str, listed: str) -> None:
    assert find_gpu(name) is GPUS[listed]
    assert find_gpu(name, 1e12, 8).name == "custom GPU", "its figures are not those of the table"


def test_the_error_for_a_model_that_does_not_fit_says_what_would_help() -> None:
    config = recipe("nano", n_layers=40)
    tight, hopeless = (Machine(find_gpu("mine", 1e12, gib), 1, 0.5) for gib in (0.12, 0.001))
    with pytest.raises(CoupledQKError, match=r"micro-batch 1 with checkpointing.*: use fsdp on \d+ GPUs"):
        require_fit(estimate(config, tight), "nano")
    with pytest.raises(CoupledQKError, match="more GPUs are not enough"):
        require_fit(estimate(config, hopeless), "nano")


NANO = ("plan", "--recipe", "nano")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((*NANO, "--gpu", "RTX 2080"), "unknown GPU 'RTX 2080': did you mean 'RTX 2080 Ti'"),
        ((*NANO, "--gpu", "A100"), "unknown GPU 'A100': did you mean 'A100 40GB' or 'A100 80GB'?"),
        (
            (*NANO, "--gpu", "RTX 2081"),
            "unknown GPU 'RTX 2081': did you mean 'RTX 2080 Ti'? choose from RTX 2080 Ti, RTX 3090",
        ),
        ((*NANO, "--gpus", "0"), "--gpus 0: expected at least 1"),
        ((*NANO, "--gpus", "17"), "17 GPUs cannot share a batch of 16 sequences"),
        ((*NANO, "--utilisation", "40"), "--utilisation 40: expected greater than 0 and at most 1"),
        ((*NANO, "--flops", "1e12"), "give both"),
        ((*NANO, "--flops", "inf", "--memory", "8"), "--flops inf: expected greater than 0 and finite"),
        ((*NANO, "--flops", "1e12", "--memory", "0"), "--memory 0: expected greater than 0"),
        ((*NANO, "--precision", "bf16"), "RTX 2080 Ti has no bf16"),
        ((*NANO, "--micro-batch", "4"), "--micro-batch is determined by the plan"),
        (("plan", "laddr"), "unknown experiment 'laddr'"),
        (("plan", "large", "--lr", "1"), "takes no settings"),
    ],
)
def test_bad_input_is_refused_in_one_line(words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(words)
    error = capsys.readouterr().err
    assert exit_.value.code == 2
    assert said in error
    assert len(error.splitlines()) == 1


def test_a_plan_of_a_run_shows_its_command_and_writes_a_figure(tmp_path, capsys: pytest.CaptureFixture) -> None:
    main([*NANO, "--seq-len", "128", "--figure", str(tmp_path / "growth.svg")])
    said = capsys.readouterr().out
    assert "coupledqk train --recipe nano --variant standard --seq-len 128 --micro-batch 16" in said
    assert "not been checked on a GPU" in said
    svg = (tmp_path / "growth.svg").read_text()
    assert svg.count('class="chart"') == 8
    for label in ("tokens in a sequence", "d_model", "layers", "GPUs"):
        assert svg.count(f'data-x-label="{label}"') == 2


def test_a_plan_of_an_experiment_counts_every_run(capsys: pytest.CaptureFixture) -> None:
    main(["plan", "smoke", "--scale", "mini"])
    said = capsys.readouterr().out
    n_runs = len(make_plan(load("smoke"), "mini").cells)
    assert f"{n_runs} of {n_runs} runs fit" in said
    assert "coupledqk reproduce smoke --scale mini" in said
    assert "--engine" not in said
    main(["plan", "smoke", "--scale", "mini", "--gpus", "2"])
    assert "coupledqk reproduce smoke --scale mini --engine ray --gpus-per-run 2" in capsys.readouterr().out
