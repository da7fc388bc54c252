"""Dynamics, scorings and variants from plugin files."""

import dataclasses
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from conftest import double_randn, random_tokens, stir
from coupledqk import (
    CoupledQKError,
    Method,
    TransformerLM,
    evolve,
    load_plugin,
    plugins,
    register_dynamics,
    register_scoring,
    register_variant,
    registry,
)
from coupledqk.cli import main
from coupledqk.config import identity
from coupledqk.costs import flops
from coupledqk.dynamics import METHODS
from coupledqk.lab.estimates import Speeds
from coupledqk.recipes import recipe
from coupledqk.run_folder import RunFolder
from coupledqk.schema import change, from_toml, to_toml
from coupledqk.scoring import SCORINGS, Softmax
from coupledqk.scoring.softmax import masked_scores
from coupledqk.variants import VARIANTS
from small_runs import TINY_TASK

DOCS = Path(__file__).parents[1] / "docs" / "plugins.md"
EXAMPLE = re.search(r"```python\n(.*?)```", DOCS.read_text(), re.S)[1]
SHAPE = {"d_model": 32, "n_heads": 4, "n_layers": 2, "d_ff": 24, "vocab_size": 37, "n_positions": 16}


pytestmark = pytest.mark.usefixtures("registries_restored")


def spring(q, k, dt, force, n_steps):
    for _ in range(n_steps):
        k = k - dt * q.mean(-2, keepdim=True)
        q = q + dt * k
    return q, k


def plugin(tmp_path, text, name="mine.py"):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_a_dynamics_is_one_file_and_one_registry_line(tmp_path):
    """In a copy of the package, one new file and one new line in registry.py add a method that can be trained."""
    source = Path(registry.__file__).parent
    copy = tmp_path / "coupledqk"
    subprocess.run(["cp", "-r", str(source), str(copy)], check=True)
    (copy / "dynamics" / "spring.py").write_text(
        "from .method import Method\n\n\n"
        "def spring(q, k, dt, force, n_steps):\n"
        "    for _ in range(n_steps):\n"
        "        k = k + dt * force(q)\n"
        "        q = q + dt * k\n"
        "    return q, k\n\n\n"
        'SPRING = Method(spring, evaluations=lambda n: (n, 0), moves=lambda n: n * ["force", "kick", "drift"])\n'
    )
    lines = (copy / "registry.py").read_text()
    line = '    "spring": DynamicsEntry("dynamics.spring:SPRING"),\n'
    (copy / "registry.py").write_text(
        lines.replace('    "affine": DynamicsEntry', line + '    "affine": DynamicsEntry')
    )
    code = (
        "import torch, coupledqk\n"
        "from coupledqk.costs import flops\n"
        "config = coupledqk.preset('mini', 'euler', method='spring', vocab_size=37)\n"
        "model = coupledqk.TransformerLM(config)\n"
        "model(torch.ones(2, 5, dtype=torch.int64), torch.ones(2, 5, dtype=torch.int64)).backward()\n"
        "q, k, force = torch.randn(1, 3, 4, 8), torch.randn(1, 3, 2, 8), coupledqk.dynamics.MLPForce(8)\n"
        "ways = [coupledqk.evolve(q, k, 0.1, force, 3, 'spring', impl=i) for i in ('reference', 'fused')]\n"
        "torch.testing.assert_close(*ways)\n"
        "print(coupledqk.__file__, flops(config, 5, fused=True).recomputed > 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(copy / "__init__.py"), "True"]


def test_a_function_is_trained_with_every_setting_of_the_built_in_methods():
    register_dynamics("spring", spring)
    register_variant("spring", method="spring", n_steps=2, gate=True)
    model = stir(TransformerLM.from_preset("nano", "spring", **SHAPE))
    tokens, targets = random_tokens(2, 2, 9).unbind()
    gradients = torch.autograd.grad(model(tokens, targets), list(model.parameters()), allow_unused=True)
    moving = {n for (n, _), g in zip(model.named_parameters(), gradients, strict=True) if g is not None and g.any()}
    assert {"blocks.0.attn.dynamics.tau", "blocks.1.attn.dynamics.gate"} <= moving
    q, k = double_randn(2, 3, 4, 5), double_randn(2, 3, 2, 5)
    moved = evolve(q, k, 0.2, torch.neg, 1, "spring")
    expected_k = k - 0.2 * q.unflatten(2, (2, 2)).mean(3)
    torch.testing.assert_close(moved, (q + 0.2 * expected_k.repeat_interleave(2, 2), expected_k))


class Mixed(torch.nn.Module):
    """q ← q + W q, with the parameters of nn.Linear."""

    def __init__(self, width, n_key_heads):
        super().__init__()
        self.mix = torch.nn.Linear(width, width)

    def forward(self, q, k):
        return q + self.mix(q), k


def test_a_modules_weights_keep_its_own_initialisation_and_are_a_function_of_seed_and_name():
    register_dynamics("mixed", Mixed)
    register_variant("mixed", method="mixed")
    one, same, other = (TransformerLM.from_preset("nano", "mixed", seed=s, **SHAPE) for s in (1, 1, 2))
    weights = [[block.attn.dynamics.mix.weight for block in model.blocks] for model in (one, same, other)]
    assert torch.equal(weights[0][0], weights[1][0])
    assert not torch.equal(weights[0][0], weights[0][1])
    assert not torch.equal(weights[0][0], weights[2][0])
    bound = 1 / 8**0.5  # of nn.Linear
    assert bound / 2 < weights[0][0].abs().max() <= bound
    standard = TransformerLM.from_preset("nano", seed=1, **SHAPE)
    assert torch.equal(one.blocks[1].attn.qkv.weight, standard.blocks[1].attn.qkv.weight)
    assert flops(one.config, 9).dynamics == 2 * 2 * 4 * 8 * 8  # two layers, four heads, one 8 × 8 matrix


def sigmoid_weights(q, k, mask, causal):
    return masked_scores(q, k, mask, causal).sigmoid() / k.shape[1]


def test_a_scoring_defined_by_its_weights_decodes_equally_with_and_without_a_cache():
    register_scoring("sigmoid", sigmoid_weights)
    register_variant("sigmoid", "hamiltonian_gqa", kind="sigmoid")
    register_scoring("constant", lambda q, k, mask, causal: masked_scores(0 * q, k, mask, causal).exp() / 16)
    register_variant("constant", kind="constant")
    model, tokens = stir(TransformerLM.from_preset("nano", "constant", **SHAPE)), random_tokens(2, 9)
    cache = model.new_cache(9)
    parts = [model(part, cache=cache) for part in tokens.split([4, 1, 4], dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), model(tokens))
    assert TransformerLM.from_preset("nano", "sigmoid", **SHAPE)(tokens).isfinite().all()


def test_a_method_with_moves_runs_fused():
    moves = Method(METHODS["semi_implicit"].run, moves=lambda n: n * ["force", "kick", "drift"])
    register_dynamics("again", moves)
    with pytest.raises(CoupledQKError, match="'other': its moves and its function disagree"):
        register_dynamics("other", dataclasses.replace(moves, moves=METHODS["euler"].moves))
    assert "other" not in METHODS
    assert "other" not in registry.DYNAMICS


class LooksElsewhere(Softmax):
    def __init__(self, n_heads, width):
        super().__init__()

    def weights(self, q, k, mask=None, causal=False, x=None):
        return sigmoid_weights(q, k, mask, causal)


MISTAKES = {
    "taken": (lambda: register_dynamics("euler", spring), "'euler' is taken by another dynamics"),
    "taken variant": (lambda: register_variant("gqa"), "'gqa' is taken by another variant"),
    "taken scoring": (lambda: register_scoring("sink", sigmoid_weights), "'sink' is taken by another scoring"),
    "no name": (lambda: register_dynamics("my dynamics", spring), "expected a name of letters"),
    "no function": (lambda: register_dynamics("mine", 3), "expected a function (q, k, dt, force, n_steps)"),
    "no pair": (lambda: register_dynamics("mine", lambda q, k, dt, force, n: q), "returned Tensor: expected the pair"),
    "shape": (lambda: register_dynamics("mine", lambda q, k, dt, force, n: (q, k + q)), "returned k of shape"),
    "nan": (
        lambda: register_dynamics("mine", lambda q, k, dt, force, n: (q, k / 0)),
        "k with values that are not finite",
    ),
    "later tokens": (
        lambda: register_dynamics("mine", lambda q, k, dt, force, n: (q.roll(-1, 1), k)),
        "moves a token differently if another token changes",
    ),
    "raises": (lambda: register_dynamics("mine", lambda q, k, dt, force, n: (q @ k, k)), "failed on a small example"),
    "weights": (lambda: register_scoring("mine", lambda q, k, mask, causal: q), "gave weights of shape"),
    "ahead": (
        lambda: register_scoring("mine", lambda q, k, mask, causal: masked_scores(q, k).softmax(-1)),
        "looks ahead",
    ),
    "disagree": (lambda: register_scoring("mine", LooksElsewhere), "`forward` and `plain` disagree"),
}


@pytest.mark.parametrize(("make", "says"), MISTAKES.values(), ids=MISTAKES)
def test_an_invalid_registration_is_explained_in_one_line_and_registers_nothing(make, says):
    before = [set(table) for table in (registry.DYNAMICS, METHODS, registry.SCORINGS, SCORINGS, VARIANTS)]
    with pytest.raises(CoupledQKError, match=re.escape(says)) as error:
        make()
    assert "\n" not in str(error.value)
    assert before == [set(table) for table in (registry.DYNAMICS, METHODS, registry.SCORINGS, SCORINGS, VARIANTS)]


BAD_FILES = {
    "import error": ("import nowhere_at_all", "line 1: ModuleNotFoundError: No module named 'nowhere_at_all'"),
    "syntax error": ("x = 1\ndef f(:", "line 2: SyntaxError"),
    "a taken name": (f"{EXAMPLE}\ncoupledqk.register_variant('euler')", "the name 'euler' is taken"),
    "nan": (EXAMPLE.replace("return q, k", "return q, k / 0", 1), "line 21: dynamics 'tug' returned k with values"),
    "nothing": ("x = 1", "registers nothing"),
}


@pytest.mark.parametrize(("text", "says"), BAD_FILES.values(), ids=BAD_FILES)
def test_an_invalid_plugin_is_reported_with_its_line_and_registers_nothing(text, says, tmp_path):
    path = plugin(tmp_path, text)
    with pytest.raises(CoupledQKError) as error:
        load_plugin(path)
    assert str(error.value).startswith(f"plugin {path}")
    assert says in str(error.value)
    assert "\n" not in str(error.value)
    assert "tug" not in VARIANTS
    assert "tug" not in METHODS
    load_plugin(plugin(tmp_path, EXAMPLE))  # the corrected file loads


def test_a_missing_plugin_is_reported(tmp_path):
    with pytest.raises(CoupledQKError, match=r"nothing.py cannot be read \(No such file or directory\)"):
        load_plugin(tmp_path / "nothing.py")


def test_the_content_of_a_plugin_is_part_of_a_runs_identity_and_its_path_is_not(tmp_path):
    standard = identity(recipe("mini"))
    load_plugin(plugin(tmp_path, EXAMPLE))
    config = recipe("mini", "tug")
    assert identity(recipe("mini")) == standard
    assert recipe("mini").plugin is None
    moved = dataclasses.replace(config, plugin=dataclasses.replace(config.plugin, path="/elsewhere/mine.py"))
    assert identity(moved) == identity(config)
    assert from_toml(type(config), to_toml(config)) == config
    assert change(config, {"method": "euler"}).plugin is None
    assert config.plugin.sha256 in to_toml(config)


def test_a_configuration_cannot_be_read_without_its_plugin_or_with_a_changed_one(tmp_path):
    path = plugin(tmp_path, EXAMPLE)
    load_plugin(path)
    text, sha256 = to_toml(recipe("mini", "tug")), recipe("mini", "tug").plugin.sha256
    plugins._paths.clear()
    with pytest.raises(CoupledQKError, match=f"needs plugin {path} with SHA-256 {sha256}: pass --plugin {path}"):
        from_toml(type(recipe("mini")), text)
    for table in (registry.DYNAMICS, METHODS, VARIANTS):
        del table["tug"]
    load_plugin(plugin(tmp_path, EXAMPLE + "# changed\n"))
    with pytest.raises(
        CoupledQKError, match=f"mine.py has changed: this run began with SHA-256 {sha256}, and the file"
    ):
        from_toml(type(recipe("mini")), text)


def test_a_plugin_that_changes_while_the_process_runs_is_refused(tmp_path):
    path = plugin(tmp_path, EXAMPLE)
    assert load_plugin(path) == load_plugin(path)
    plugin(tmp_path, EXAMPLE + "# changed\n")
    with pytest.raises(CoupledQKError, match="has changed since this process loaded it"):
        load_plugin(path)


def flags(text):
    settings = {"corpus": text, "tokenizer": "bytes", "n_positions": 64, "seq_len": 16, **TINY_TASK, "steps": 4}
    return [part for key, value in settings.items() for part in (f"--{key}", str(value))]


def test_the_documented_example_trains_and_its_run_reports_the_plugin_it_needs(tmp_path, text, capsys):
    path, out = plugin(tmp_path, EXAMPLE, "tug.py"), tmp_path / "run"
    main(["train", "--plugin", str(path), "--recipe", "mini", "--variant", "tug", "--out", str(out), *flags(text)])
    run = RunFolder.open(out)
    assert run.result
    assert run.config.plugin.path == str(path)
    main(["generate", str(out), "--plugin", str(path), "--prompt", "1", "--tokens", "3"])
    here = [sys.executable, "-m", "coupledqk", "eval", str(out)]
    done = subprocess.run(here, capture_output=True, text=True)
    assert done.returncode == 2
    assert f"this run needs plugin {path} with SHA-256 {run.config.plugin.sha256}: pass --plugin {path}" in done.stderr
    done = subprocess.run([*here, "--plugin", str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_runs_command_lists_other_runs_and_the_plugin_that_a_run_needs(tmp_path, capsys):
    path = plugin(tmp_path, EXAMPLE, "tug.py")
    load_plugin(path)
    for variant in ("euler", "tug"):
        RunFolder(tmp_path / "runs" / variant).create(recipe("mini", variant))
    main(["runs", str(tmp_path / "runs"), "--json"])
    assert [row["seed"] for row in json.loads(capsys.readouterr().out)] == [0, 0]
    plugins._paths.clear()
    main(["runs", str(tmp_path / "runs"), "--json"])
    euler, tug = json.loads(capsys.readouterr().out)
    assert euler["attention"] == "euler"
    assert tug == {"run": str(tmp_path / "runs/tug"), "status": "interrupted", "needs_plugin": str(path)}
    for shown in ("euler", "tug"):  # in the second iteration, tug is the only run
        main(["runs", str(tmp_path / "runs")])
        said = capsys.readouterr().out
        assert shown in said
        assert f"--plugin {path}, unchanged since the run began" in said
        shutil.rmtree(tmp_path / "runs/euler", ignore_errors=True)


def test_a_run_that_needs_a_plugin_does_not_prevent_estimates_of_other_runs(tmp_path):
    load_plugin(plugin(tmp_path, EXAMPLE))
    result = {"best": {}, "final": {}, "seconds": 10.0, "tokens_per_second": 1.0, "definition": ""}
    for variant in ("euler", "tug"):
        RunFolder(tmp_path / "runs" / variant).create(recipe("mini", variant))
        RunFolder(tmp_path / "runs" / variant).write_json("result.json", result)
    assert len(Speeds.of(tmp_path / "runs").measured) == 2
    plugins._paths.clear()
    assert Speeds.of(tmp_path / "runs").hours(recipe("mini", "euler")) == pytest.approx(10 / 3600)


def test_workers_of_the_laboratory_load_the_plugin_and_refuse_a_changed_one(tmp_path, text):
    from coupledqk.lab.engine import LocalPool

    path = plugin(tmp_path, EXAMPLE, "tug.py")
    load_plugin(path)
    settings = {"tokenizer": "bytes", "n_positions": 64, "seq_len": 16, "max_tokens": None, "max_valid_tokens": None}
    config = recipe("mini", "tug", corpus=str(text), **{**settings, **TINY_TASK, "steps": 2})
    messages = []
    for changed in (False, True):
        if changed:
            path.write_text(EXAMPLE + "# changed\n")
        pool = LocalPool(1)
        pool.start(config, tmp_path / f"cell{changed}")
        while not messages or messages[-1].kind == "step" or len([m for m in messages if m.kind != "step"]) <= changed:
            messages.extend(pool.wait(60))
        pool.close()
    ends = [message for message in messages if message.kind != "step"]
    assert [message.kind for message in ends] == ["finished", "failed"]
    assert "tug.py has changed: this run began with SHA-256" in ends[1].error


@pytest.mark.parametrize(
    "command", ["train", "compare", "reproduce", "bench", "eval", "generate", "analyze", "explore"]
)
def test_every_command_that_builds_or_loads_models_takes_a_plugin(command, capsys):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    assert "--plugin" in capsys.readouterr().out
