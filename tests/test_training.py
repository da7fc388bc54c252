"""Training: the paper's recipes, and the meaning of the recorded numbers."""

import math
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
import torch._dynamo.exc
import torch.nn.functional as F

from coupledqk.config import TrainConfig
from coupledqk.data.batches import valid_batches
from coupledqk.data.shards import prepare
from coupledqk.errors import CoupledQKError, DivergedError
from coupledqk.model import TransformerLM
from coupledqk.recipes import RECIPES, recipe
from coupledqk.run_folder import RunFolder
from coupledqk.runs import Run
from coupledqk.runs.training import train_run
from coupledqk.tasks.lm import language_metrics
from coupledqk.tasks.models import new_model
from coupledqk.training.checkpoints import Checkpoints, damage
from coupledqk.training.events import Evaluation, Event, Step
from coupledqk.training.logs import tensorboard
from coupledqk.training.loop import train
from coupledqk.training.optimizer import build_optimizer, lr_at
from small_runs import run_to, tiny

# recipes and schedule


@pytest.mark.parametrize(
    ("name", "attention", "shape", "lr", "micro_batch", "checkpointing", "corpus"),
    [
        ("wikitext-103", "standard", (512, 8, 8, 2048), 6e-4, 8, False, "wikitext-103"),
        ("wikitext-103", "hamiltonian", (512, 8, 8, 2048), 6e-4, 8, False, "wikitext-103"),
        ("wikitext-103-medium", "diff", (768, 12, 12, 3072), 3e-4, 8, True, "wikitext-103"),
        ("wikitext-103-medium", "hamiltonian", (768, 12, 12, 3072), 3e-4, 4, True, "wikitext-103"),
        ("wikitext-103-large", "standard", (1024, 16, 24, 4096), 2e-4, 4, True, "wikitext-103"),
        ("wikitext-103-large", "euler", (1024, 16, 24, 4096), 2e-4, 2, True, "wikitext-103"),
        ("openwebtext", "hamiltonian", (512, 8, 8, 2048), 6e-4, 8, False, "openwebtext"),
        ("pubmed", "hamiltonian", (512, 8, 8, 2048), 6e-4, 8, False, "pubmed"),
    ],
)
def test_recipes_are_those_of_the_papers_appendix(
    name, attention, shape, lr, micro_batch, checkpointing, corpus
) -> None:
    config = recipe(name, attention)
    model, train = config.model, config.train
    assert (model.d_model, model.n_heads, model.n_layers, model.d_ff) == shape
    assert (model.vocab_size, model.positions, config.task.corpus, config.task.tokenizer) == (
        50_257,
        "learned",
        corpus,
        "gpt2",
    )
    assert train == TrainConfig(
        steps=30_000, batch_size=32, seq_len=512, lr=lr, warmup=2_000, beta1=0.9, beta2=0.95, adam_eps=1e-8,
        weight_decay=0.1, clip=1.0, precision="fp16", eval_every=1_000, log_every=10,
    )  # fmt: skip
    assert (config.runtime.micro_batch, config.runtime.gradient_checkpointing) == (micro_batch, checkpointing)


def test_the_learning_rate_schedule_at_its_corner_points() -> None:
    train = RECIPES["wikitext-103"].train
    at = {step: lr_at(step, train) for step in (0, 1, 1_000, 2_000, 16_000, 30_000)}
    assert at == pytest.approx({0: 0.0, 1: 3e-7, 1_000: 3e-4, 2_000: 6e-4, 16_000: 3e-4, 30_000: 0.0}, abs=1e-12)
    assert lr_at(0, replace(train, warmup=0)) == train.lr


@pytest.mark.parametrize("variant", ["standard", "hamiltonian", "diff", "affine", "potential"])
def test_weight_decay_applies_to_all_matrices_and_to_nothing_else(text: Path, variant: str) -> None:
    config = tiny(text, variant, qk_norm=True)
    model = new_model(config)
    decayed, plain = build_optimizer(model, config.train).param_groups
    names = {id(p): name for name, p in model.named_parameters()}
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.1, 0.0)
    assert "embed.weight" in {names[id(p)] for p in decayed["params"]}
    kinds = {names[id(p)].rsplit(".", 2)[-2:][0 if "norm" in names[id(p)] else 1] for p in plain["params"]}
    assert all(p.ndim < 2 for p in plain["params"])
    assert all(p.ndim == 2 for p in decayed["params"])
    assert len(decayed["params"]) + len(plain["params"]) == len(names)
    assert kinds <= {"attn_norm", "ffn_norm", "norm", "q", "k", "tau", "lam", "c"}


# numbers


def test_perplexity_agrees_with_its_definition(text: Path, tmp_path: Path) -> None:
    run = run_to(tiny(text), tmp_path / "run")
    model, valid = run.model("final"), prepare(run.config.task).valid.astype(int).tolist()
    losses = []
    for start in range(0, len(valid) - 1, 16):
        window = torch.tensor(valid[start : start + 17])
        log_probabilities = F.log_softmax(model(window[None, :-1])[0].double(), dim=-1)
        losses += [-log_probabilities[i, target].item() for i, target in enumerate(window[1:])]
    assert len(losses) == len(valid) - 1
    final = run.result["final"]
    assert final["loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    assert final["perplexity"] == pytest.approx(math.exp(sum(losses) / len(losses)), rel=1e-5)
    n_bytes = sum(token != 256 for token in valid)
    assert final["bits_per_byte"] == pytest.approx(sum(losses) / math.log(2) / n_bytes, rel=1e-5)
    assert run.result["best"]["loss"] == min(record["loss"] for record in run.metrics("valid"))
    assert run.result["corpus_hash"] == prepare(run.config.task).info.hash


def test_micro_batches_do_not_change_the_update(text: Path, tmp_path: Path) -> None:
    losses = []
    for size in (1, 4, 6):
        run = run_to(tiny(text, micro_batch=size), tmp_path / f"micro-{size}")
        losses.append([record["loss"] for record in run.metrics("train")])
    assert losses[0] == pytest.approx(losses[2], rel=1e-4)
    assert losses[1] == pytest.approx(losses[2], rel=1e-4)


def test_the_best_weights_are_kept_in_addition_to_the_final_ones(text: Path, tmp_path: Path) -> None:
    # many passes over little text with a large step: the model overfits, so the best is not the last
    run = run_to(tiny(text, steps=150, lr=3e-2, eval_every=10, keep=1), tmp_path / "run")
    best, final = run.result["best"], run.result["final"]
    assert best["step"] < final["step"]
    corpus = prepare(run.config.task)
    for which, record in (("best", best), ("final", final)):
        batches = valid_batches(corpus.valid, 16, 4)
        measured = language_metrics(run.model(which), batches, corpus.info.splits["valid"].bytes)
        assert measured["loss"] == pytest.approx(record["loss"], rel=1e-6)
    assert len(list((run.path / "checkpoints").iterdir())) == 2


def test_fp16_scales_the_loss_and_learns(text: Path, tmp_path: Path) -> None:
    events: list[Event] = []
    run = run_to(tiny(text, precision="fp16", steps=60), tmp_path / "run", on_event=events.append)
    steps = [event for event in events if isinstance(event, Step)]
    assert any(math.isfinite(event.grad_norm) for event in steps)
    assert run.metrics("train")[-1]["loss"] < 0.8 * run.metrics("train")[0]["loss"]
    newest = Checkpoints(run.path / "checkpoints", keep=2).newest()
    assert newest is not None
    assert torch.load(newest / "state.pt", weights_only=True)["scaler"]["scale"] > 1


def test_a_compiled_model_reaches_the_same_loss(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    losses = []
    for compiled in (False, True):
        config = tiny(text, "hamiltonian", steps=4, compile=compiled)
        losses.append(run_to(config, tmp_path / str(compiled)).result["best"]["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_a_failing_compiler_ends_the_run_in_one_line(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: object) -> None:
        raise RuntimeError("no C++ compiler found\nand many more lines")

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=broken))
    with pytest.raises(
        CoupledQKError, match=r"the model cannot be compiled \(.*no C\+\+ compiler found\): install"
    ) as raised:
        run_to(tiny(text, "standard", compile=True), tmp_path / "run")
    assert "\n" not in str(raised.value)


def test_long_runs_are_compiled_by_default_if_the_machine_can_compile(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[object] = []

    def compile_models(function: object, can: bool = True) -> object:
        compiled.append(function)
        if not can:
            raise torch._dynamo.exc.TorchDynamoException("no C++ compiler found")
        return function

    def models_compiled(name: str, **settings: object) -> int:
        compiled.clear()
        assert run_to(tiny(text, "standard", **settings), tmp_path / name).result
        return sum(isinstance(each, TransformerLM) for each in compiled)

    monkeypatch.setattr(torch, "compile", compile_models)
    assert models_compiled("short") == 0
    monkeypatch.setattr("coupledqk.runs.training.LONG_RUN", 0)
    assert models_compiled("long") == 1
    assert models_compiled("refused", compile=False) == 0
    monkeypatch.setattr(torch, "compile", partial(compile_models, can=False))
    assert models_compiled("no compiler") == 0


def test_step_sizes_and_lambdas_are_logged_per_head(text: Path, tmp_path: Path) -> None:
    record = run_to(tiny(text, "euler_diff"), tmp_path / "run").metrics("valid")[-1]
    assert [len(row) for row in record["dt"]] == [4, 4]  # two sub-heads for each of two heads, in two layers
    assert [len(row) for row in record["lambda"]] == [2, 2]
    assert all(0.05 < dt < 0.2 for row in record["dt"] for dt in row)
    assert "dt" not in run_to(tiny(text, "standard"), tmp_path / "plain").metrics("valid")[-1]


@pytest.mark.parametrize(
    ("variant", "lr", "says"),
    [
        ("standard", 20.0, "worse than chance|became (nan|inf)"),  # which comes first depends on rounding
        ("hamiltonian", 2.0, "worse than chance|became (nan|inf)"),
        ("standard", 1e30, "became (nan|inf)"),
    ],
)
def test_divergence_stops_the_run_and_names_the_last_good_checkpoint(
    text: Path, tmp_path: Path, variant, lr, says
) -> None:
    with pytest.raises(DivergedError, match=says) as error:
        run_to(tiny(text, variant, lr=lr, steps=100, warmup=2, save_every=1, keep=100), tmp_path / "run")
    assert "lower lr" in str(error.value)
    found = re.search(r"the last good checkpoint is (\S+)\.", str(error.value))
    assert found
    assert damage(Path(found[1])) is None
    # the loss at that checkpoint is not much worse than chance
    model = Run(tmp_path / "run").model(Path(found[1]), "cpu")
    corpus = prepare(tiny(text).task)
    assert language_metrics(model, valid_batches(corpus.valid, 16, 4), 1)["loss"] < math.log(257) + 1


class Hopeless:
    """A Task whose loss is at chance level for a number of steps, and higher afterwards."""

    chance_loss = 2.0

    def __init__(self, good_steps: int) -> None:
        self.good_steps = good_steps

    def batch(self, step: int, rows: slice = slice(None)):
        return torch.full((2, 1), step), torch.zeros(2, 1, dtype=torch.long)

    def loss_sum(self, model, micro):
        step = int(micro[0][0])
        return 2 * (model.weight.sum() * 0 + (2.0 if step < self.good_steps else 3.5))

    def evaluate(self, model, mesh):
        return {"loss": 2.0}


def test_a_loss_worse_than_chance_is_tolerated_for_twenty_steps_and_no_later_checkpoint_counts_as_good(
    text: Path, tmp_path: Path
) -> None:
    config = tiny(text, steps=50, save_every=1, micro_batch=2, batch_size=2)
    checkpoints = Checkpoints(tmp_path, keep=100)
    with pytest.raises(DivergedError, match=r"above 3\.00, worse than chance, for 20 steps at step 27") as error:
        list(train(torch.nn.Linear(2, 2), Hopeless(good_steps=7), config, checkpoints))
    # the first bad loss, at step 8, is that of the weights after 7 updates
    assert f"the last good checkpoint is {tmp_path / 'step-0000006'}." in str(error.value)


# starting from another run


def test_a_gated_coupled_run_starts_exactly_from_the_end_of_a_standard_run(text: Path, tmp_path: Path) -> None:
    source = run_to(tiny(text, "standard"), tmp_path / "standard")
    config = tiny(text, "euler", gate=True, init_from=str(source.path))
    tokens = torch.arange(32)[None] % 16
    tokens = tokens[:, :16]
    assert torch.equal(new_model(config)(tokens), source.model()(tokens))
    resumed = run_to(config, tmp_path / "coupled")
    assert resumed.result["best"]["loss"] < source.result["best"]["loss"] + 0.1
    with pytest.raises(CoupledQKError, match="set gate=true"):
        new_model(tiny(text, "euler", init_from=str(source.path)))
    with pytest.raises(CoupledQKError, match="another architecture"):
        new_model(tiny(text, "standard", d_ff=64, init_from=str(source.path)))


def test_a_run_that_starts_from_another_one_reads_other_text_with_its_tokenizer(text: Path, tmp_path: Path) -> None:
    bpe = {"tokenizer": "bpe:270", "vocab_size": 270}
    source = run_to(tiny(text, "standard", **bpe), tmp_path / "source")
    other = tmp_path / "other.txt"
    other.write_text("".join(f"zebras graze near {n} quiet lakes;\n" for n in range(200)))
    again = run_to(tiny(other, "standard", init_from=str(source.path), **bpe), tmp_path / "again")
    assert again.tokenizer().to_json() == source.tokenizer().to_json()
    assert (
        run_to(tiny(other, "standard", **bpe), tmp_path / "new").tokenizer().to_json() != source.tokenizer().to_json()
    )
    with pytest.raises(CoupledQKError, match=r"tokenizer='bytes', but .* reads bpe:270: set tokenizer=bpe:270"):
        run_to(tiny(other, "standard", init_from=str(source.path)), tmp_path / "bytes")


# consumers


def test_the_curves_are_written_to_tensorboard(text: Path, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config = tiny(text)
    train_run(config, tmp_path / "run", lambda run: [tensorboard(run.path)])
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    losses = [record["loss"] for record in RunFolder(tmp_path / "run").metrics("train")]
    assert [event.value for event in events.Scalars("train/loss")] == pytest.approx(losses, rel=1e-6)
    assert len(events.Scalars("valid/perplexity")) == 4


def test_timings_are_kept_apart_from_reproducible_metrics(text: Path, tmp_path: Path) -> None:
    events: list[Event] = []
    run = run_to(tiny(text), tmp_path / "run", on_event=events.append)
    assert "seconds" not in (run.path / "metrics.jsonl").read_text()
    seconds = [record["seconds"] for record in run.timings()]
    assert seconds == sorted(seconds)
    assert len(seconds) == 20
    assert sum(isinstance(event, Evaluation) for event in events) == 4
