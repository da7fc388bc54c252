"""Adapting a trained language model: only the parameters of the method are trained, from exactly the source's loss."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from coupledqk.config import AdaptConfig, GLUEConfig, RunConfig
from coupledqk.errors import CoupledQKError
from coupledqk.runs import Run
from coupledqk.schema import change
from coupledqk.tasks.adapt import Adapting
from coupledqk.training.checkpoints import read_weights
from small_runs import assert_resumes_to_the_same_bits, newest, run_to

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def other_text(tmp_path: Path) -> Path:
    path = tmp_path / "other.txt"
    path.write_text("".join(f"the root of {n * n} is {n};\n" for n in range(60)))
    return path


def adapt(source: Run, text: Path, method: str, variant: str = "standard", **settings) -> RunConfig:
    config = replace(
        source.config,
        init_from=str(source.path),
        task=AdaptConfig(corpus=str(text), tokenizer="bytes", method=method),  # pyright: ignore[reportArgumentType]
    )
    attention = {"dynamics.method": "leapfrog", "gate": True} if variant == "coupled" else {}
    return change(config, {**attention, **settings})


TRAINED = {
    "full": ("standard", r".*"),
    "lora": ("standard", r".*\.lora_[AB]\..*"),
    "lora_coupling": ("coupled", r".*(\.lora_[AB]\.|\.dynamics\.).*"),
    "coupling": ("coupled", r".*\.dynamics\..*"),
}


@pytest.mark.parametrize("method", TRAINED)
def test_only_the_parameters_of_the_method_are_trained(
    source: Run, other_text: Path, tmp_path: Path, method: str
) -> None:
    variant, trained = TRAINED[method]
    config = adapt(source, other_text, method, variant, steps=6, warmup=0)
    start = Adapting.open(config).build_model().state_dict()
    run = run_to(config, tmp_path / method)
    end = read_weights(newest(run))
    assert end.keys() == start.keys()
    changed = {name for name in start if not torch.equal(start[name], end[name])}
    assert changed == {name for name in start if re.fullmatch(trained, name)}
    assert run.result["final"]["loss"] < Adapting.open(config).evaluate(source.model())["loss"]


@pytest.mark.parametrize("method", TRAINED)
def test_every_method_starts_with_exactly_the_loss_of_its_source(source: Run, other_text: Path, method: str) -> None:
    task = Adapting.open(adapt(source, other_text, method, TRAINED[method][0]))
    assert task.evaluate(task.build_model())["loss"] == task.evaluate(source.model())["loss"]


@pytest.mark.parametrize("method", ["lora_coupling", "coupling"])
def test_adapting_resumes_bit_identically(source: Run, other_text: Path, tmp_path: Path, method: str) -> None:
    assert_resumes_to_the_same_bits(adapt(source, other_text, method, "coupled", steps=20), tmp_path)


def test_an_adapted_run_is_read_as_a_plain_model_with_the_updates_merged(
    source: Run, other_text: Path, tmp_path: Path
) -> None:
    config = adapt(source, other_text, "lora", steps=6, warmup=0)
    run, task = run_to(config, tmp_path / "adapted"), Adapting.open(config)
    plain = run.model("final")
    assert plain.state_dict().keys() == source.model().state_dict().keys()
    assert task.evaluate(plain)["loss"] == pytest.approx(run.result["final"]["loss"], rel=1e-6)
    assert run.result["final"]["loss"] != task.evaluate(source.model())["loss"]


def test_runs_that_cannot_be_adapted_are_reported(source: Run, other_text: Path) -> None:
    with pytest.raises(CoupledQKError, match="trains the dynamics, but the model has none"):
        Adapting.open(adapt(source, other_text, "coupling"))
    with pytest.raises(CoupledQKError, match=r"tokenizer='bpe:300', but .* reads bytes: set tokenizer=bytes"):
        Adapting.open(adapt(source, other_text, "full", tokenizer="bpe:300", vocab_size=300))
    with pytest.raises(CoupledQKError, match="rank=4 has no effect with method 'full'"):
        AdaptConfig(rank=4)
    with pytest.raises(CoupledQKError, match="set gate=true"):
        Adapting.open(adapt(source, other_text, "coupling", "coupled", gate=False)).build_model()
    with pytest.raises(CoupledQKError, match="name it with init_from"):
        RunConfig(task=GLUEConfig())
