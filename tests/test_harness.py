"""lm-evaluation-harness gives the same perplexity for our models as our evaluation."""

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import tiny_model
from coupledqk.cli.harness import Harness
from coupledqk.data.batches import valid_batches
from coupledqk.data.tokenizers import byte_tokenizer
from coupledqk.errors import CoupledQKError
from coupledqk.tasks.lm import language_metrics

transformers = pytest.importorskip("transformers")
pytest.importorskip("lm_eval")

from coupledqk.hf import couple, to_transformers, uncouple  # noqa: E402
from coupledqk.hf.harness import find_tasks, run_harness  # noqa: E402
from coupledqk.hf.tokenizers import to_fast  # noqa: E402

LENGTH = 16
DOCUMENTS = ["9 squared", "seven times seven is forty-nine.", "two words, and then some more to fill a third wi"]

ROLLING = """
task: toy_text
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}, cache_dir: {cache}}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{{{text}}}}"
metric_list: [{{metric: word_perplexity}}, {{metric: byte_perplexity}}, {{metric: bits_per_byte}}]
"""

CHOICE = """
task: toy_choice
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}, cache_dir: {cache}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: answer
metric_list: [{{metric: acc}}]
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model (in model/) and two tasks (in tasks/)."""
    place = tmp_path_factory.mktemp("harness")
    (place / "tasks").mkdir()
    model = tiny_model("hamiltonian", vocab_size=257).float()
    to_transformers(model, eos_token_id=256, pad_token_id=256).save_pretrained(place / "model")
    to_fast(byte_tokenizer(), LENGTH).save_pretrained(place / "model")
    for name, task, rows in (
        ("text", ROLLING, [{"text": text} for text in DOCUMENTS]),
        ("choice", CHOICE, [{"question": "1 + 1 =", "choices": [" 2", " 3"], "answer": n % 2} for n in range(4)]),
    ):
        file = place / f"{name}.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        (place / "tasks" / f"{name}.yaml").write_text(task.format(file=file, cache=place / "cache"))
    return place


@pytest.fixture(scope="module")
def results(place: Path) -> dict:
    return run_harness(place / "model", ["toy_text", "toy_choice"], place / "tasks")


def test_harness_perplexities_equal_ours(results) -> None:
    """The harness prepends end-of-text and scores windows of the trained length, which are the same as ours if full."""
    model, tokenizer = tiny_model("hamiltonian", vocab_size=257).float().eval(), byte_tokenizer()
    nats = 0.0
    for text in DOCUMENTS:
        tokens = np.array([tokenizer.end_of_text, *tokenizer.encode(text)])
        assert len(tokens) <= LENGTH or (len(tokens) - 1) % LENGTH == 0
        loss = language_metrics(model, valid_batches(tokens, LENGTH, batch_size=8), len(text.encode()))["loss"]
        nats += loss * (len(tokens) - 1)
    n_bytes = sum(len(text.encode()) for text in DOCUMENTS)
    n_words = sum(len(text.split()) for text in DOCUMENTS)
    found = results["toy_text"]
    assert found["bits_per_byte,none"] == pytest.approx(nats / n_bytes / math.log(2), rel=1e-5)
    assert found["byte_perplexity,none"] == pytest.approx(math.exp(nats / n_bytes), rel=1e-5)
    assert found["word_perplexity,none"] == pytest.approx(math.exp(nats / n_words), rel=1e-5)


def test_the_likelier_continuation_is_chosen(results) -> None:
    assert results["toy_choice"]["acc,none"] == 0.5  # the same question each time, the answers alternate


def test_the_command_prints_a_table(place: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    called = {}

    def run(*arguments):
        called["with"] = arguments
        return {"toy": {"alias": "toy", "acc,none": 0.25, "acc_stderr,none": "N/A", "sample_len": 4}}

    monkeypatch.setattr("coupledqk.hf.harness.run_harness", run)
    Harness(place / "model", ("toy",), place / "tasks", device="cpu").run()
    assert called["with"] == (place / "model", ("toy",), place / "tasks", 8, None, "cpu")
    assert [line.split() for line in capsys.readouterr().out.splitlines()][-1] == ["toy", "acc", "0.2500"]


def test_bad_arguments_are_reported(place: Path, tmp_path: Path) -> None:
    with pytest.raises(CoupledQKError, match=r"no config\.json; `coupledqk export RUN DIR` writes one"):
        run_harness(tmp_path, ["toy_text"], place / "tasks")
    with pytest.raises(CoupledQKError, match="no task was named"):
        find_tasks([], None)
    with pytest.raises(CoupledQKError, match="no such folder; --include"):
        find_tasks(["toy_text"], tmp_path / "nowhere")


def test_an_incomplete_or_damaged_model_is_refused(place: Path, tmp_path: Path) -> None:
    config = json.loads((place / "model" / "config.json").read_text())

    def damage(name: str, content: bytes | None) -> Path:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        shutil.copytree(place / "model", folder)
        (folder / name).unlink()
        if content is not None:
            (folder / name).write_bytes(content)
        return folder

    deeper = json.dumps(config | {"n_layers": config["n_layers"] + 1}).encode()
    for name, content, message in (
        ("config.json", deeper, r"the weights in .* lack model\.blocks\.2\."),
        ("config.json", b"{}", "cannot be loaded: Unrecognized model"),
        ("model.safetensors", b"\0", "cannot be loaded: "),
        ("model.safetensors", None, "cannot be loaded: "),
        ("tokenizer.json", None, "has no tokenizer that transformers can load: save the tokenizer there too"),
    ):
        with pytest.raises(CoupledQKError, match=message):
            run_harness(damage(name, content), ["toy_text"], place / "tasks")


def test_a_coupled_model_is_evaluated_with_its_coupling(place: Path, tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=257, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
        max_position_embeddings=64, initializer_range=0.3, bos_token_id=256, eos_token_id=256,
    )  # fmt: skip
    model = couple(LlamaForCausalLM(config), "euler").eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".coupling." in name:
                parameter.add_(torch.randn(parameter.shape))
    model.save_pretrained(tmp_path)
    to_fast(byte_tokenizer(), LENGTH).save_pretrained(tmp_path)

    def bits(model) -> float:
        tokens = torch.tensor([[256, *byte_tokenizer().encode(DOCUMENTS[0])]])
        return model(tokens, labels=tokens).loss.item() / math.log(2)  # a byte is a token

    found = run_harness(tmp_path, ["toy_text"], place / "tasks", limit=1)["toy_text"]["bits_per_byte,none"]
    assert found == pytest.approx(bits(model), rel=1e-5)
    assert found != pytest.approx(bits(uncouple(model)), rel=1e-3)
