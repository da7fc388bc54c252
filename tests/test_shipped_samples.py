"""The sample models in the package are complete, comparable, and show learned attention."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from coupledqk import samples
from coupledqk.analysis import loss_effects
from coupledqk.cli.explore import TEXT
from coupledqk.explore.bundle import make_bundle, make_effects, open_readers

MOST_BYTES = 5_000_000
"""Of one model, so that the package stays small."""


@pytest.fixture(scope="module")
def readers():
    return open_readers([samples.sample(name).path for name in samples.NAMES], device="cpu")


@pytest.mark.parametrize("name", samples.NAMES)
def test_a_sample_is_small_and_its_card_agrees_with_its_results(name: str) -> None:
    run = samples.sample(name)
    files = [file for file in run.path.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) < MOST_BYTES
    card = (run.path / "README.md").read_text("utf-8")
    assert card.startswith(f"# Sample model: {name}")
    assert f"{run.result['best']['bits_per_byte']:.4f} | {run.result['best']['perplexity']:.3f} |" in card
    assert (
        f"the whole valid split ({run.info['corpus']['splits']['valid']['tokens']:,} tokens)"
        in run.result["definition"]
    )
    assert run.result["definition"] in card
    assert (samples.FOLDER / "LICENSE.python.txt").is_file()
    for name in ("config.toml", "info.json", "result.json", "README.md"):
        assert not re.search(r"(?<![.\w])/\w+/", (run.path / name).read_text("utf-8")), (
            "no folder of the machine is named"
        )


def test_the_samples_differ_only_in_coupling_and_are_well_below_the_bigram_model() -> None:
    standard, coupled = map(samples.sample, samples.NAMES)
    attention = replace(coupled.config.model.attention, dynamics=standard.config.model.attention.dynamics)
    assert replace(coupled.config, model=replace(coupled.config.model, attention=attention)) == standard.config
    assert standard.info["corpus"]["hash"] == coupled.info["corpus"]["hash"]
    for run in (standard, coupled):
        bigram = next(row for row in run.result["baselines"] if row["order"] == 2)
        assert run.result["best"]["bits_per_byte"] < 0.75 * bigram["bits_per_byte"]


def test_the_explorer_shows_the_documented_heads_and_effects(readers) -> None:
    """On the default text there are a head that coupling clearly changes, a previous-token head, and effects on the loss."""
    _, coupled = make_bundle(readers, TEXT)["runs"]
    stops = {stop["kind"]: stop for stop in coupled["tour"]}
    assert stops["changed"]["share"] > 0.25
    described = (Path(__file__).parent.parent / "docs" / "explorer.md").read_text("utf-8")
    for kind in ("changed", "induction"):
        assert f"Layer {stops[kind]['layer']}, head {stops[kind]['head']}" in described
    assert stops["previous"]["share"] > 0.5 > stops["previous"]["even"]
    for effects in make_effects(readers, TEXT):
        assert effects is not None
        assert effects["loss"] < 4.0, "the loss of a guess among 2,048 tokens is 7.6"
    assert effects["without_dynamics"] > effects["loss"]


def test_the_samples_predict_repeated_text_better(readers) -> None:
    """The models use their context: a name that occurred before is easier to predict."""
    for reader in readers:
        once = reader.tokenizer.encode("zorbat_quimp = 1\n")
        twice = reader.tensor(once * 2)
        assert loss_effects(reader.model, twice).loss < loss_effects(reader.model, reader.tensor(once)).loss
