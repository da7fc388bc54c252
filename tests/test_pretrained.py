"""Fine-tuning of a pretrained transformers model starts from the saved weights and trains the added modules."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from coupledqk.config import RunConfig
from coupledqk.data.batches import GROUP, grouped_rows, shuffled_rows
from coupledqk.errors import CoupledQKError
from coupledqk.lab.cells import make_plan
from coupledqk.lab.experiment import load
from coupledqk.recipes import RECIPES
from coupledqk.run_folder import RunFolder
from coupledqk.runs import train
from coupledqk.schema import change, from_dict, to_dict
from coupledqk.tasks.pretrained import PretrainedClassification, PretrainedClassifier

transformers = pytest.importorskip("transformers")
pytest.importorskip("peft")

WORDS = ["good", "bad", "is", "it", "the", "film", "a", "play", "fine", "poor"]
ADDED = ("lora_", ".coupling.")
METHODS = [(variant, method) for variant in ("standard", "euler") for method in ("full", "lora")]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as `--data-dir` expects it: GLUE's files, a tiny BERT and a tiny GPT-2."""
    folder = tmp_path_factory.mktemp("data")
    sst = folder / "glue" / "SST-2"
    sst.mkdir(parents=True)
    rows = [f"{('good', 'bad')[i % 2]} the film{' it is' * (i % 4)}\t{1 - i % 2}" for i in range(48)]
    for split in ("train", "dev"):
        (sst / f"{split}.tsv").write_text("\n".join(["sentence\tlabel", *rows]))
    sizes: dict[str, Any] = {"vocab_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16}
    bert = transformers.BertConfig(**sizes, intermediate_size=32, max_position_embeddings=32)
    save(transformers.BertModel(bert), "[PAD]", folder / "bert")
    gpt2 = transformers.GPT2Config(vocab_size=16, n_embd=16, n_layer=2, n_head=2, n_positions=32, n_inner=32)
    save(transformers.GPT2Model(gpt2), None, folder / "gpt2")
    return folder


def save(model: Any, pad: str | None, folder: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[EOS]", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="[EOS]", pad_token=pad)
    fast.save_pretrained(folder)
    model.save_pretrained(folder)


def configured(data: Path, variant: str = "standard", source: str = "bert", **settings: Any) -> RunConfig:
    task = {"kind": "pretrained", "source": str(data / source), "data_dir": str(data / "glue")}
    base = from_dict(RunConfig, {**to_dict(RECIPES["mini"]), "task": task})
    gate = {} if variant == "standard" else {"method": None, "dynamics.method": variant, "gate": True}
    gate.pop("method", None)
    own = {"batch_size": 8, "seq_len": 16, "steps": 12, "warmup": 0, "eval_every": 12, "lr": 1e-2, **gate, **settings}
    return change(base, own)


def opened(data: Path, variant: str = "standard", source: str = "bert", **settings: Any) -> Any:
    task = PretrainedClassification.open(configured(data, variant, source, **settings))
    return task, task.build_model()


def dev_logits(task: PretrainedClassification, model: PretrainedClassifier) -> Tensor:
    with torch.no_grad():
        return model(*task.dev_set[:3])


@pytest.mark.parametrize("source", ["bert", "gpt2"])
@pytest.mark.parametrize(("variant", "method"), METHODS)
def test_every_row_starts_from_an_exact_copy_of_the_pretrained_weights(
    data: Path, source: str, variant: str, method: str
) -> None:
    task, model = opened(data, variant, source, **{"task.method": method})
    weights = {
        name.replace(".base_layer.", "."): weight
        for name, weight in model.model.base_model.state_dict().items()
        if not any(part in name for part in ADDED)
    }
    saved = transformers.AutoModel.from_pretrained(data / source).state_dict()
    assert weights.keys() == saved.keys()
    assert all(torch.equal(weights[name], saved[name]) for name in saved)
    assert torch.equal(dev_logits(task, model), dev_logits(*opened(data, source=source)))


@pytest.mark.parametrize("source", ["bert", "gpt2"])
def test_padding_does_not_change_the_logits(data: Path, source: str) -> None:
    task, model = opened(data, source=source)
    together = dev_logits(task, model)
    with torch.no_grad():
        alone = torch.cat([model(*(part[i : i + 1] for part in task.dev_set[:3])) for i in range(48)])
    assert len(set(task.dev_set.lengths.tolist())) > 1
    torch.testing.assert_close(together, alone)


def test_only_low_rank_updates_coupling_and_head_are_trained(data: Path) -> None:
    _, model = opened(data, "euler", **{"task.method": "lora"})
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    assert {part for part in (*ADDED, "classifier", "pooler") if any(part in name for name in trained)} == {
        *ADDED,
        "classifier",
        "pooler",
    }
    assert all(any(part in name for part in (*ADDED, "classifier", "pooler")) for name in trained)
    assert any("query.base_layer" in name for name in frozen)


def test_the_coupling_has_its_own_learning_rate(data: Path, tmp_path: Path) -> None:
    """AdamW's first step changes the gates, which start at 0, by their learning rate."""

    def gates(scale: float) -> Tensor:
        config = configured(data, "euler", steps=1, eval_every=1, lr=1e-3, **{"task.coupling_lr": scale})
        run = train(config, tmp_path / str(scale), progress=False)
        return torch.tensor(run.result["final"]["dt"]).abs()

    torch.testing.assert_close(gates(20.0), 20 * gates(1.0), rtol=1e-2, atol=0)


@pytest.mark.parametrize(("variant", "method"), METHODS)
def test_a_run_learns_and_its_folder_describes_the_model(data: Path, tmp_path: Path, variant: str, method: str) -> None:
    run = train(configured(data, variant, **{"task.method": method, "steps": 60}), tmp_path / "run", progress=False)
    assert run.result["best"]["accuracy"] == 1.0
    assert run.info["corpus"]["pretrained"]["source"] == str(data / "bert")
    if variant == "euler":
        assert max(abs(dt) for row in run.result["final"]["dt"] for dt in row) > 0


def test_resuming_with_different_pretrained_weights_is_refused(data: Path, tmp_path: Path) -> None:
    local = {"task.source": "someone/bert", "task.model_dir": str(data / "bert"), "runtime.save_every": 3}
    config = configured(data, **local)
    train(change(config, {"steps": 3, "eval_every": 3}), tmp_path / "a", progress=False)
    folder = RunFolder(tmp_path / "a")
    (folder.path / "result.json").unlink()
    torch.manual_seed(1)  # the first model may have been drawn with the seed of every test
    other = transformers.BertModel(transformers.AutoConfig.from_pretrained(data / "bert"))
    save(other, "[PAD]", tmp_path / "other")
    moved = change(folder.config, {"task.model_dir": str(tmp_path / "other")})
    with pytest.raises(CoupledQKError, match="has changed since"):
        train(moved, tmp_path / "a", progress=False)


def test_models_that_cannot_be_fine_tuned_are_refused(data: Path) -> None:
    with pytest.raises(CoupledQKError, match="set gate=true"):
        opened(data, "euler", gate=False)
    with pytest.raises(CoupledQKError, match="more than the dynamics"):
        opened(data, qk_norm=True)
    with pytest.raises(CoupledQKError, match="cannot be loaded") as error:
        opened(data, source="glue")
    assert "\n" not in str(error.value)


def test_rows_of_similar_length_share_a_batch_and_every_epoch_contains_each_row_once() -> None:
    lengths = [(7 * i) % 64 + 1 for i in range(GROUP * 4)]
    batches = [grouped_rows(lengths, 4, seed=3, step=step) for step in range(2 * GROUP)]
    for epoch in (batches[:GROUP], batches[GROUP:]):
        assert sorted(row for batch in epoch for row in batch) == list(range(len(lengths)))
    assert batches[:GROUP] != batches[GROUP:]
    shuffled = [shuffled_rows(len(lengths), 4, 3, step) for step in range(GROUP)]

    def padded(chosen: list[list[int]]) -> int:
        return sum(4 * max(lengths[row] for row in batch) for batch in chosen)

    assert padded(batches[:GROUP]) < 1.1 * sum(lengths) < padded(shuffled)


def test_the_experiment_finds_its_model_in_the_data_folder(tmp_path: Path) -> None:
    (tmp_path / "all-MiniLM-L6-v2").mkdir()
    cells = make_plan(load("pretrained"), "mini", tmp_path / "lab", data_dir=tmp_path).cells
    elsewhere = make_plan(load("pretrained"), "mini", tmp_path / "lab").cells
    assert {cell.config.task.model_dir for cell in cells} == {str(tmp_path / "all-MiniLM-L6-v2")}  # pyright: ignore[reportAttributeAccessIssue]
    assert [cell.name for cell in cells] == [cell.name for cell in elsewhere]
    assert len(cells) == 40
