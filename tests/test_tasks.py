"""Associative recall and classification in the same training loop as language modelling."""

import gzip
import json
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coupledqk.cli import main
from coupledqk.config import MQARConfig, RunConfig, identity
from coupledqk.data.glue import read_glue
from coupledqk.data.tokenizers import byte_tokenizer
from coupledqk.errors import CoupledQKError
from coupledqk.loss import IGNORED
from coupledqk.recipes import RECIPES, glue_recipe, recipe
from coupledqk.report.runs_page import write_page
from coupledqk.runs import Run
from coupledqk.schema import change
from coupledqk.tasks.accuracy import score
from coupledqk.tasks.glue import Classifier, SentenceClassification, encode, join
from coupledqk.tasks.models import new_model
from coupledqk.tasks.mqar import AssociativeRecall
from coupledqk.training.checkpoints import read_weights
from small_runs import TINY_TASK, assert_resumes_to_the_same_bits, newest, run_to

pytestmark = pytest.mark.usefixtures("own_cache")


# accuracy


def test_accuracy_and_loss_agree_with_a_manual_calculation() -> None:
    logits = torch.tensor([[[2.0, 0.0], [0.0, 3.0], [9.0, 0.0]], [[0.0, 1.0], [5.0, 0.0], [0.0, 9.0]]])
    labels = torch.tensor([[0, 0, IGNORED], [1, 0, IGNORED]])  # right, wrong, -, right, right, -
    losses = [torch.tensor(x).exp().add(1).log() for x in (-2.0, 3.0, -1.0, -5.0)]
    found = score([(logits[:1], labels[:1]), (logits[1:], labels[1:])])
    assert found == pytest.approx({"accuracy": 3 / 4, "loss": float(sum(losses)) / 4})


# associative recall


def recall(variant: str = "standard", **settings) -> RunConfig:
    small = {**TINY_TASK, "vocab_size": 16, "n_positions": 16, "seq_len": 16, "n_pairs": 2, "n_test": 40}
    return recipe("mqar-mini", variant, **{**small, **settings})


class Oracle(nn.Module):
    """Predicts the value that follows the query's key in the context; its answers for keys below `knows` are wrong."""

    def __init__(self, vocab_size: int, n_pairs: int, knows: int = 0) -> None:
        super().__init__()
        self.vocab_size, self.context, self.knows = vocab_size, 2 * n_pairs, knows
        self.nothing = nn.Parameter(torch.zeros(()))

    def forward(self, inputs: Tensor) -> Tensor:
        keys, values = inputs[:, 0 : self.context : 2], inputs[:, 1 : self.context : 2]
        same = inputs[:, :, None] == keys[:, None, :]  # (B, T, pairs)
        said = (same * values[:, None, :]).sum(-1)
        said = torch.where(inputs < self.knows, 0, said)
        return F.one_hot(said, self.vocab_size) * 50.0


@pytest.mark.parametrize("protocol", ["paper", "zoology"])
def test_looking_up_the_key_answers_every_recall_query(protocol: str) -> None:
    fixed = {"n_train": 50} if protocol == "zoology" else {}
    config = recall(protocol=protocol, vocab_size=64, **fixed)
    task = AssociativeRecall.open(config)
    assert task.evaluate(Oracle(64, 2))["accuracy"] == 1.0
    known = 16
    asked = task.test_set[0][task.test_set[1] != IGNORED]
    assert task.evaluate(Oracle(64, 2, known))["accuracy"] == pytest.approx(float((asked >= known).float().mean()))
    inputs, labels = task.batch(3)
    assert score([(Oracle(64, 2)(inputs), labels)])["accuracy"] == 1.0


@pytest.mark.parametrize("protocol", ["paper", "zoology"])
def test_recall_batches_are_a_function_of_seed_and_step(protocol: str) -> None:
    fixed = {"n_train": 50} if protocol == "zoology" else {}
    config = recall(protocol=protocol, vocab_size=64, **fixed)
    task, again, other = (AssociativeRecall.open(change(config, {"seed": seed})) for seed in (0, 0, 1))
    batches = [task.batch(step) for step in (5, 4, 5)]
    assert all(map(torch.equal, batches[0], again.batch(5)))
    assert all(map(torch.equal, batches[0], batches[2]))
    assert not torch.equal(batches[0][0], batches[1][0])
    assert not torch.equal(batches[0][0], other.batch(5)[0])
    assert all(map(torch.equal, task.test_set, other.test_set))
    assert task.about["hash"] == other.about["hash"]


def test_the_seed_of_zoologys_test_set_is_not_used_for_training() -> None:
    with pytest.raises(CoupledQKError, match="that of the test set"):
        AssociativeRecall.open(recall(protocol="zoology", vocab_size=64, n_train=32, seed=2**32 - 1))


def test_zoologys_epochs_contain_every_row_once() -> None:
    task = AssociativeRecall.open(recall(protocol="zoology", vocab_size=64, n_train=32))
    rows = torch.cat([task.batch(step)[0] for step in range(4)])
    assert sorted(rows.tolist()) == sorted(task.train_set[0].tolist())


def test_a_small_model_learns_to_recall_the_value(tmp_path: Path) -> None:
    """Uses a single pair, since distinguishing several takes a thousand steps or more."""
    once = {"steps": 100, "eval_every": 100, "save_every": 100}
    result = run_to(recall("hamiltonian", n_pairs=1, seq_len=8, batch_size=32, **once), tmp_path / "run").result
    assert result["final"]["accuracy"] > 0.9  # guessing gives 1/8
    assert "queries" in result["definition"]


@pytest.mark.parametrize("protocol", ["paper", "zoology"])
def test_recall_resumes_bit_identically(tmp_path: Path, protocol: str) -> None:
    fixed = {"n_train": 50, "vocab_size": 20} if protocol == "zoology" else {}
    assert_resumes_to_the_same_bits(recall("euler", protocol=protocol, **fixed), tmp_path)


def test_the_recall_recipe_agrees_with_the_paper() -> None:
    config = RECIPES["mqar"]
    model, train = config.model, config.train
    assert (model.d_model, model.n_heads, model.n_layers, model.d_ff, model.vocab_size) == (256, 4, 6, 1024, 64)
    assert (train.lr, train.warmup, train.batch_size, train.weight_decay, train.clip) == (3e-4, 500, 64, 0.01, 1.0)
    assert (train.beta1, train.beta2, train.schedule, train.steps) == (0.9, 0.95, "cosine", 20_000)
    assert config.task == MQARConfig(protocol="paper", n_pairs=4, n_test=3_000)


def test_invalid_recall_settings_are_refused() -> None:
    with pytest.raises(CoupledQKError, match=r"num_kv_pairs=5: expected at most 4 at input_seq_len=16"):
        AssociativeRecall.open(recall(n_pairs=5))
    with pytest.raises(CoupledQKError, match="n_train=7 has no effect with protocol 'paper'"):
        recall(n_train=7)


def test_the_command_compares_attentions_over_seeds_and_learning_rates(tmp_path: Path, capsys) -> None:
    command = ["mqar", "--pairs", "1", "--length", "4", "--steps", "3", "--seeds", "0", "1", "--lrs", "1e-3", "1e-2"]
    main([*command, "--out", str(tmp_path), "--json"])
    found = json.loads(capsys.readouterr().out)
    labels = [f"{name}, 3 steps, lr {lr}" for name in ("standard", "hamiltonian") for lr in ("0.001", "0.01")]
    assert [row["label"] for row in found["rows"]] == labels
    assert all(list(row["seeds"]) == ["0", "1"] for row in found["rows"])
    assert [verdict["claim"]["baseline"] for verdict in found["verdicts"]] == labels[:2]
    steps = {Run(path.parent).config.train.steps for path in tmp_path.rglob("config.toml")}
    assert steps == {3}
    main([*command, "--out", str(tmp_path)])  # finished runs are not trained again
    said = capsys.readouterr()
    assert "8 of 8 runs are already finished" in said.err
    assert said.out.count(" ± ") == 4
    assert (tmp_path / "recall-mini.html").is_file()
    write_page(sorted(path.parent for path in tmp_path.rglob("config.toml")), tmp_path / "page.html", "Recall")
    page = (tmp_path / "page.html").read_text()
    assert "Validation accuracy" in page
    assert "erplexity" not in page


# GLUE

WORDS = {0: "dull", 1: "bright"}


@pytest.fixture
def glue(tmp_path: Path) -> Path:
    """A folder in GLUE's layout, partly compressed, in which one word determines the label."""
    folder = tmp_path / "glue"
    (folder / "SST-2").mkdir(parents=True)
    (folder / "QNLI").mkdir()
    rows = [f"a {'very ' * (i % 5)}{WORDS[i % 3 % 2]} film {i} \t{i % 3 % 2}" for i in range(60)]
    (folder / "SST-2" / "train_part.tsv").write_text("\n".join(["sentence\tlabel", *rows]))
    with gzip.open(folder / "SST-2" / "dev.tsv.gz", "wt") as file:
        file.write("\n".join(["sentence\tlabel", *rows[:20], ""]))
    pairs = ['0\tIs "it" so?\tIt is.\tentailment', "1\tWhy?\tIt rains.\tnot_entailment"]
    for name in ("train", "dev"):
        (folder / "QNLI" / f"{name}.tsv").write_text("\n".join(["index\tquestion\tsentence\tlabel", *pairs]))
    return folder


def classify(source: Run, glue: Path, **settings) -> RunConfig:
    own = {"data_dir": str(glue), "batch_size": 8, "lr": 1e-2, "log_every": 1, "save_every": 7}
    return glue_recipe(source.config, str(source.path), "sst2", 60, **{**own, **settings})


def test_the_fine_tuning_recipe_agrees_with_the_paper() -> None:
    config = glue_recipe(recipe("wikitext-103", "diff", seed=2), "runs/x", "mnli", 392_702)
    train = config.train
    assert (train.lr, train.batch_size, train.seq_len, train.schedule) == (2e-5, 32, 128, "linear")
    assert (train.weight_decay, train.clip, train.steps, train.warmup) == (0.01, 1.0, 36_816, 3_681)
    assert (config.seed, config.model) == (2, recipe("wikitext-103", "diff").model)
    assert glue_recipe(recipe("wikitext-103"), "runs/x", "sst2", 67_349).train.steps == 10_524


def test_examples_are_read_by_column_name(glue: Path) -> None:
    assert read_glue("qnli", "train", glue) == [(('Is "it" so?', "It is."), 0), (("Why?", "It rains."), 1)]
    dev = read_glue("sst2", "dev", glue)
    assert len(dev) == 20
    assert dev[2] == (("a very very dull film 2",), 0)
    assert len(read_glue("sst2", "train", glue, limit=7)) == 7


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("index\ttext\tlabel\n0\tgood\t1", "dev.tsv has no column 'sentence': its first line names index, text, label"),
        ("sentence\nfine", "dev.tsv has no column 'label'"),
        ("sentence\tlabel\nfine\t1\nbad\t", "dev.tsv, line 3, column 'label': label '', expected 0 or 1"),
        ("sentence\tlabel\nfine", "dev.tsv, line 2: 1 columns, expected 2"),
        ("sentence\tlabel\n", "sst2 has no dev examples"),
    ],
)
def test_a_missing_column_or_label_is_reported(tmp_path: Path, content: str, complaint: str) -> None:
    (tmp_path / "SST-2").mkdir()
    (tmp_path / "SST-2" / "dev.tsv").write_text(content)
    with pytest.raises(CoupledQKError, match=re.escape(complaint)) as error:
        read_glue("sst2", "dev", tmp_path)
    assert "\n" not in str(error.value)
    with pytest.raises(CoupledQKError, match=r"expected one file .*train\*\.tsv or \.tsv\.gz, but there is none"):
        read_glue("sst2", "train", tmp_path)


def test_sentence_pairs_are_joined_by_end_of_text_and_the_longer_sentence_is_truncated() -> None:
    assert join([[1, 2], [3]], 9, 8) == [1, 2, 9, 3]
    assert join([[1] * 9, [3, 4]], 9, 6) == [1, 1, 1, 9, 3, 4]
    assert join([[1, 2], [3] * 9], 9, 6) == [1, 2, 9, 3, 3, 3]
    assert join([[1] * 9, [3] * 9], 9, 6) == [1, 1, 1, 9, 3, 3]
    assert join([[1] * 9], 9, 6) == [1] * 6
    assert join([[]], 9, 6) == [9]


def test_padding_after_the_last_token_changes_no_logit(glue: Path) -> None:
    config = recipe("mini", "hamiltonian", tokenizer="bytes", n_positions=64, seq_len=64, d_model=16)
    classifier = Classifier(new_model(config).double(), 2, seed=0).double()
    tokens, lengths, _ = encode(read_glue("sst2", "dev", glue), byte_tokenizer(), 64)
    assert len(set(lengths.tolist())) > 3
    together = classifier(tokens, lengths)
    noise = torch.randint_like(tokens, 257)
    unseen = torch.where(torch.arange(64) < lengths[:, None], tokens, noise)
    alone = torch.cat([classifier(row[None, :n], n[None]) for row, n in zip(tokens, lengths, strict=True)])
    torch.testing.assert_close(classifier(unseen, lengths), together, rtol=0, atol=1e-12)
    torch.testing.assert_close(alone, together, rtol=0, atol=1e-12)
    changed = tokens.clone()
    changed[torch.arange(20), lengths - 1] += 1
    assert (classifier(changed, lengths) != together).any(1).all()


def test_classification_learns_and_is_measured_on_dev(source: Run, glue: Path, tmp_path: Path) -> None:
    run = run_to(classify(source, glue, steps=60, warmup=2), tmp_path / "run")
    assert run.result["final"]["accuracy"] == 1.0
    assert run.result["definition"].startswith("the share of the 20 dev examples")
    assert "head.weight" in read_weights(newest(run))
    with pytest.raises(CoupledQKError, match="has been trained to classify sentences"):
        run.model()


def test_classification_batches_are_a_function_of_seed_and_step(source: Run, glue: Path) -> None:
    task, other = (SentenceClassification.open(classify(source, glue, seed=seed)) for seed in (0, 1))
    later = task.batch(9)
    assert all(map(torch.equal, task.batch(2), SentenceClassification.open(classify(source, glue)).batch(2)))
    assert all(map(torch.equal, later, task.batch(9)))
    assert not torch.equal(later[0], other.batch(9)[0])
    epoch = torch.cat([task.batch(step)[0] for step in range(15)])[:60]  # 120 rows: two passes
    assert sorted(epoch.tolist()) == sorted(task.train_set.tokens.tolist())
    heads = [t.build_model().state_dict()["head.weight"] for t in (task, task, other)]
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])


def test_classification_resumes_bit_identically(source: Run, glue: Path, tmp_path: Path) -> None:
    assert_resumes_to_the_same_bits(classify(source, glue, steps=20, warmup=2), tmp_path)


def test_the_command_fine_tunes_runs(source: Run, glue: Path, tmp_path: Path, capsys) -> None:
    command = ["glue", str(source.path), "--data-dir", str(glue), "--epochs", "1", "--max-examples", "40"]
    main([*command, "--lr", "1e-2", "--out", str(tmp_path / "tuned")])
    said = capsys.readouterr().out
    assert re.search(r"standard +[01]\.\d{4} +1", said)
    (run,) = (Run(path.parent) for path in (tmp_path / "tuned").rglob("config.toml"))
    assert (run.config.seed, run.config.train.steps, run.config.train.warmup) == (0, 2, 0)
    assert run.info["corpus"]["examples"] == {"train": 40, "dev": 20}


def test_paths_are_not_part_of_a_runs_identity(source: Run, glue: Path) -> None:
    here = classify(source, glue)
    there = change(here, {"data_dir": "/elsewhere", "init_from": f"/elsewhere/{source.path.name}"})
    assert identity(here) == identity(there)
