"""Exporting a run to transformers and importing it: nothing is lost, and outdated results are not claimed."""

import functools
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from coupledqk.cli import main
from coupledqk.cli.export import Export
from coupledqk.cli.import_ import Import
from coupledqk.config import AdaptConfig
from coupledqk.data.tokenizers import byte_tokenizer, gpt2, train_bpe
from coupledqk.errors import CoupledQKError
from coupledqk.recipes import recipe
from coupledqk.runs import Run
from coupledqk.runs.training import train_run
from coupledqk.tasks.models import new_model

transformers = pytest.importorskip("transformers")

from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

from coupledqk.hf import CoupledQKForCausalLM, export_run, import_run, to_diffllama  # noqa: E402
from coupledqk.hf.export import push_export  # noqa: E402
from coupledqk.hf.tokenizers import from_fast, to_fast  # noqa: E402

TINY = {
    "d_model": 16,
    "n_heads": 2,
    "n_layers": 2,
    "d_ff": 32,
    "seq_len": 16,
    "batch_size": 4,
    "lr": 1e-2,
    "steps": 4,
    "warmup": 1,
    "eval_every": 2,
    "device": "cpu",
}
TEXT = "".join(f"{n} squared is {n * n}.\n" for n in range(60))


@pytest.fixture(autouse=True)
def _quiet() -> None:
    transformers.utils.logging.disable_progress_bar()


def trained(folder: Path, variant: str = "hamiltonian", tokenizer: str = "bytes", steps: int = 4, **settings) -> Run:
    (folder / "text.txt").write_text(TEXT)
    given = {**TINY, "corpus": str(folder / "text.txt"), "tokenizer": tokenizer, "steps": steps, **settings}
    config = recipe("nano", variant, **given)
    return train_run(config, folder / "run")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Path]:
    """A run and its export; tests leave both as they are."""
    folder = tmp_path_factory.mktemp("exported")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COUPLEDQK_CACHE", str(folder / "cache"))
        run = trained(folder, tokenizer="bpe:280")
    export_run(run, folder / "model")
    return run, folder / "model"


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


# round trip


def test_an_exported_run_is_imported_unchanged(exported, tmp_path: Path) -> None:
    run, folder = exported
    back = import_run(folder, tmp_path / "back")
    here, there = files(back.path), files(run.path)
    for name in ("config.toml", "info.json", "result.json", "metrics.jsonl", "tokenizer.json"):
        assert here[name] == there[name], name
    best = next(name for name in there if name.startswith("checkpoints/best-") and name.endswith("safetensors"))
    assert here[best] == there[best]
    export_run(back, tmp_path / "again")
    assert files(tmp_path / "again") == files(folder)


CLEAN = """
import sys
sys.modules["coupledqk"] = None  # not installed
import torch
from transformers import AutoModelForCausalLM
folder, out = sys.argv[1:]
model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
tokens = torch.arange(48).view(3, 16)
generated = model.generate(tokens, max_new_tokens=3, do_sample=False)
model.save_pretrained(out + "/again")
again = AutoModelForCausalLM.from_pretrained(out + "/again", trust_remote_code=True)
assert torch.equal(again(tokens).logits, model(tokens).logits)
torch.save({"logits": model(tokens).logits.detach(), "generated": generated}, out + "/result.pt")
"""


def test_an_export_runs_where_coupledqk_is_not_installed(exported, tmp_path: Path) -> None:
    run, folder = exported
    environment = {**os.environ, "HF_MODULES_CACHE": str(tmp_path / "modules"), "HF_HUB_OFFLINE": "1"}
    environment.pop("PYTHONPATH", None)
    subprocess.run([sys.executable, "-c", CLEAN, str(folder), str(tmp_path)], check=True, env=environment, cwd=tmp_path)
    result = torch.load(tmp_path / "result.pt", weights_only=True)
    tokens, model = torch.arange(48).view(3, 16), run.model()
    assert torch.equal(result["logits"], model(tokens))
    assert torch.equal(result["generated"], model.generate(tokens, 3, temperature=0.0))


def test_an_export_explains_how_to_load_it(exported) -> None:
    _, folder = exported
    config = json.loads((folder / "config.json").read_text())
    assert "pip install 'coupledqk[hf]'" in config["load_with"]
    assert "trust_remote_code=True" in (folder / "README.md").read_text()
    plain = type(AutoModelForCausalLM.from_pretrained(folder))  # our installed class, not remote code
    assert plain is CoupledQKForCausalLM


def test_an_export_of_a_plugin_contains_and_mentions_no_remote_code(exported, tmp_path: Path, monkeypatch) -> None:
    run, folder = exported
    monkeypatch.setattr("coupledqk.hf.export.plugin_of", lambda *names: "a plugin")
    export_run(run, tmp_path / "model")
    assert files(folder).keys() - files(tmp_path / "model").keys() == {"modeling_coupledqk.py"}
    card = (tmp_path / "model" / "README.md").read_text()
    assert "trust_remote_code" not in card
    assert "in a plugin of coupledqk" in card


class LocalHub:
    """Stands in for the hub: repositories are folders."""

    root: Path

    def create_repo(self, repository: str, exist_ok: bool) -> str:
        if repository.startswith("stranger/"):
            raise OSError("403 Forbidden\nYou don't have the rights")
        (self.root / repository).mkdir(parents=True, exist_ok=exist_ok)
        return f"https://hub/{repository}"

    def upload_folder(self, *, folder_path: Path, repo_id: str, commit_message: str) -> None:
        shutil.copytree(folder_path, self.root / repo_id, dirs_exist_ok=True)


def test_export_pushes_the_whole_folder(exported, tmp_path: Path, monkeypatch, capsys) -> None:
    run, folder = exported
    monkeypatch.setattr(LocalHub, "root", tmp_path / "hub", raising=False)
    monkeypatch.setattr("huggingface_hub.HfApi", LocalHub)
    main(["export", str(run.path), str(tmp_path / "model"), "--push", "user/name"])
    assert "Uploaded to https://hub/user/name" in capsys.readouterr().out
    assert files(tmp_path / "hub" / "user" / "name") == files(folder)
    with pytest.raises(
        CoupledQKError, match=r"is written, but stranger/name cannot be uploaded \(403 Forbidden\): log in"
    ):
        push_export(folder, "stranger/name")


def test_an_unreachable_hub_gives_a_one_line_error(exported, monkeypatch) -> None:
    from huggingface_hub import HfApi

    _, folder = exported
    nowhere = functools.partial(HfApi, endpoint="http://127.0.0.1:9", token="hf_none")
    monkeypatch.setattr("huggingface_hub.HfApi", nowhere)
    with pytest.raises(CoupledQKError, match=r"is written, but user/name cannot be uploaded \(.+\): log in") as error:
        push_export(folder, "user/name")
    assert "\n" not in str(error.value)


def test_prompts_are_padded_on_the_left(exported) -> None:
    _, folder = exported
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows = tokenizer(["3 squared", "3"], return_tensors="pt", padding=True)["attention_mask"]
    assert rows[1].tolist() == sorted(rows[1].tolist())
    assert rows[1, 0] == 0


def test_an_adapted_run_is_exported_with_its_low_rank_updates_merged(exported, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("COUPLEDQK_CACHE", str(tmp_path / "cache"))
    source, _ = exported
    (tmp_path / "other.txt").write_text("".join(f"the root of {n * n} is {n};\n" for n in range(60)))
    task = AdaptConfig(corpus=str(tmp_path / "other.txt"), tokenizer="bpe:280", method="lora")
    config = replace(source.config, init_from=str(source.path), task=task)
    run = train_run(config, tmp_path / "run")
    export_run(run, tmp_path / "model")
    tokens = torch.arange(48).view(3, 16)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    torch.testing.assert_close(theirs(tokens).logits, run.model()(tokens))
    card = (tmp_path / "model" / "README.md").read_text()
    assert str(tmp_path) not in card
    assert str(source.path) not in card


@pytest.mark.parametrize(
    ("variant", "settings"),
    [("standard", {"positions": "rope"}), ("euler_diff", {}), ("affine", {"qk_norm": True})],
)
def test_exported_logits_equal_those_of_the_run(
    variant, settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COUPLEDQK_CACHE", str(tmp_path / "cache"))
    run = trained(tmp_path, variant, steps=1, eval_every=1, **settings)
    export_run(run, tmp_path / "model")
    tokens = torch.arange(48).view(3, 16)
    expected = run.model()(tokens)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    torch.testing.assert_close(theirs(tokens).logits, expected)
    back = import_run(tmp_path / "model", tmp_path / "back").model()
    for name, tensor in run.model().state_dict().items():
        assert torch.equal(back.state_dict()[name], tensor), name


def test_the_model_card_states_the_results_and_their_definition(exported) -> None:
    run, folder = exported
    card = (folder / "README.md").read_text()
    for fact in (
        f"{run.result['best']['perplexity']:.4f}",
        f"{run.result['best']['bits_per_byte']:.4f}",
        run.result["definition"],
        run.info["corpus"]["hash"],
        'method = "leapfrog"',
        f"{run.info['parameters']:,} parameters",
        "windows of 16 tokens",
        f"| tokens seen | {run.result['tokens']:,} |",
        f"| machine | {run.info['starts'][-1]['machine']} |",
        "## Intended use and limitations",
    ):
        assert fact in card, fact
    assert str(folder.parent) not in card


def test_a_fine_tuned_model_is_imported_without_results(exported, tmp_path: Path) -> None:
    run, folder = exported
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        model.model.embed.weight.mul_(1.5)
    model.save_pretrained(tmp_path / "tuned")
    tokenizer.save_pretrained(tmp_path / "tuned")
    over = tmp_path / "over"
    shutil.copytree(folder, over)
    model.save_pretrained(over)  # the record no longer belongs to these weights
    for name in ("tuned", "over"):
        back = import_run(tmp_path / name, tmp_path / f"run-{name}")
        assert not back.result
        assert not back.metrics("valid")
        assert back.tokenizer().to_json() == run.tokenizer().to_json()
        assert torch.equal(back.model().embed.weight, model.model.embed.weight)
    assert back.config == run.config


def test_an_imported_run_can_be_evaluated_sampled_from_and_used_as_initialization(
    exported, tmp_path: Path, capsys, monkeypatch
) -> None:
    run, folder = exported
    monkeypatch.setenv("COUPLEDQK_CACHE", str(tmp_path / "cache"))
    back = import_run(folder, tmp_path / "back")
    main(["eval", str(back.path), "--device", "cpu", "--json"])
    assert json.loads(capsys.readouterr().out)["loss"] == pytest.approx(run.result["best"]["loss"], rel=1e-6)
    main(["generate", str(back.path), "--prompt", "3 sq", "--tokens", "3", "--device", "cpu"])
    assert capsys.readouterr().out.startswith("3 sq")
    model = new_model(recipe("nano", "hamiltonian", **TINY, tokenizer="bpe:280", init_from=str(back.path)))
    assert torch.equal(model.embed.weight, run.model().embed.weight)


def test_the_commands_report_what_they_wrote(exported, tmp_path: Path, capsys) -> None:
    run, folder = exported
    Export(run.path, tmp_path / "model").run()
    said = capsys.readouterr()
    assert f"perplexity {run.result['best']['perplexity']:.3f}" in said.out
    assert run.result["definition"] in said.out
    Import(tmp_path / "model", tmp_path / "run").run()
    assert "imported with its results" in capsys.readouterr().out
    assert files(tmp_path / "model") == files(folder)
    assert Run.open(tmp_path / "run").status == "finished"


def test_a_diffllama_with_our_tokenizer_becomes_a_run(tmp_path: Path) -> None:
    from conftest import tiny_model

    ours = tiny_model("diff", flavour="official", positions="rope", vocab_size=257).float()
    to_diffllama(ours).save_pretrained(tmp_path / "model")
    to_fast(byte_tokenizer(), 32).save_pretrained(tmp_path / "model")
    back = import_run(tmp_path / "model", tmp_path / "run")
    assert back.config.model == ours.config
    tokens = torch.arange(20).view(2, 10)
    torch.testing.assert_close(back.model()(tokens), ours(tokens))


# tokenizers

TEXTS = [
    "Hello world, it's 3 o'clock\n\n  naïve 日本 🙂\t x",
    "a <|endoftext|> in the text is text",
    " leading",
    "trailing  ",
    "",
    "éé\r\n\x00\u00a0",
]


@pytest.mark.parametrize(
    "make",
    [byte_tokenizer, lambda: train_bpe("bpe:280", [TEXT, *TEXTS]), gpt2],
    ids=["bytes", "bpe", "gpt2"],
)
def test_both_tokenizers_give_the_same_ids_and_the_same_text(make, tmp_path: Path) -> None:
    ours = make()
    to_fast(ours, 64).save_pretrained(tmp_path)
    fast = AutoTokenizer.from_pretrained(tmp_path)
    for text in TEXTS:
        assert fast(text)["input_ids"] == ours.encode(text), text
        assert fast.decode(ours.encode(text)) == text
    assert (len(fast), fast.eos_token_id, fast.model_max_length) == (ours.vocab_size, ours.end_of_text, 64)
    assert fast.decode([ours.end_of_text], skip_special_tokens=True) == ""
    assert from_fast(fast).to_json() == ours.to_json()


# bad input


def test_a_configuration_of_a_newer_version_is_refused(exported, tmp_path: Path) -> None:
    _, folder = exported
    shutil.copytree(folder, tmp_path / "newer")
    config = json.loads((folder / "config.json").read_text())
    config |= {"format_version": 2, "attention": {"something": "new"}}
    (tmp_path / "newer" / "config.json").write_text(json.dumps(config))
    for load in (AutoModelForCausalLM.from_pretrained, lambda path: import_run(path, tmp_path / "run")):
        with pytest.raises(CoupledQKError, match=r"format version 2.*reads up to 1.*pip install --upgrade coupledqk"):
            load(tmp_path / "newer")
    assert not (tmp_path / "run").exists()


def test_folders_that_are_not_exports_are_refused(exported, tmp_path: Path) -> None:
    run, folder = exported
    with pytest.raises(CoupledQKError, match=r"has no config\.json; `coupledqk export RUN DIR` writes one"):
        import_run(run.path, tmp_path / "out")
    (tmp_path / "llama").mkdir()
    (tmp_path / "llama" / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(CoupledQKError, match=r"type 'llama'.*coupledqk\.couple"):
        import_run(tmp_path / "llama", tmp_path / "out")
    for name, remedy in (("model.safetensors", "weights in .* cannot be read"), ("coupledqk.json", "is damaged")):
        broken = tmp_path / f"broken-{name}"
        shutil.copytree(folder, broken)
        (broken / name).write_bytes((folder / name).read_bytes()[:200])
        with pytest.raises(CoupledQKError, match=remedy):
            import_run(broken, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_configuration_that_does_not_match_the_weights_is_refused(exported, tmp_path: Path) -> None:
    _, folder = exported
    shutil.copytree(folder, tmp_path / "edited")
    config = json.loads((folder / "config.json").read_text())
    for settings, message in (
        ({"n_layers": 1}, r"contain model\.blocks\.1\..*, which the model of its config\.json does not have"),
        ({"attention": "standard"}, r"contain model\.blocks\.0\.attn\.dynamics"),
        ({"d_model": "16"}, r"config\.json is damaged .*d_model"),
    ):
        (tmp_path / "edited" / "config.json").write_text(json.dumps(config | settings))
        with pytest.raises(CoupledQKError, match=message):
            import_run(tmp_path / "edited", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_model_with_a_newer_configuration_than_its_record_keeps_its_configuration(exported, tmp_path: Path) -> None:
    """The record has three steps of the dynamics and the model now takes one, which the weights alone do not show."""
    run, folder = exported
    shutil.copytree(folder, tmp_path / "edited")
    config = json.loads((folder / "config.json").read_text())
    config["attention"]["dynamics"]["n_steps"] = 1
    (tmp_path / "edited" / "config.json").write_text(json.dumps(config))
    back = import_run(tmp_path / "edited", tmp_path / "back")
    assert back.config.model.attention.dynamics.n_steps == 1 != run.config.model.attention.dynamics.n_steps
    assert not back.result
    tokens = torch.arange(8)[None]
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "edited")
    assert torch.equal(back.model().eval()(tokens), theirs(tokens).logits)


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(exported, tmp_path: Path) -> None:
    _, folder = exported
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.resize_token_embeddings(200)
    model.save_pretrained(tmp_path / "small")
    AutoTokenizer.from_pretrained(folder).save_pretrained(tmp_path / "small")
    with pytest.raises(CoupledQKError, match="has 280 tokens and its model 200: save the tokenizer"):
        import_run(tmp_path / "small", tmp_path / "out")


def test_nothing_is_overwritten_and_unfinished_runs_are_not_exported(exported, tmp_path: Path, monkeypatch) -> None:
    run, folder = exported
    for act in (lambda: export_run(run, folder), lambda: import_run(folder, run.path)):
        before = files(folder), files(run.path)
        with pytest.raises(CoupledQKError, match="exists already"):
            act()
        assert (files(folder), files(run.path)) == before
    unfinished = tmp_path / "unfinished"
    shutil.copytree(run.path, unfinished)
    (unfinished / "result.json").unlink()
    with pytest.raises(CoupledQKError, match="not finished"):
        export_run(Run.open(unfinished), tmp_path / "out")
    assert not (tmp_path / "out").exists()
