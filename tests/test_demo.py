"""The demonstration compares two models that differ only in their attention."""

import shlex
from dataclasses import replace

from coupledqk.lab.cells import make_plan
from coupledqk.lab.demo import demo_experiment, next_steps
from coupledqk.variants import variant


def test_the_two_models_differ_in_coupling_alone(tmp_path):
    standard, coupled = (cell.config for cell in make_plan(demo_experiment(steps=200), "demo", tmp_path).cells)
    assert coupled.model.attention.dynamics == variant("hamiltonian").dynamics
    attention = replace(coupled.model.attention, dynamics=standard.model.attention.dynamics)
    assert replace(coupled, model=replace(coupled.model, attention=attention)) == standard
    assert standard.train.warmup < standard.train.steps == 200


def test_the_commands_after_the_demonstration_can_be_pasted(tmp_path):
    runs = [tmp_path / "my demo" / name for name in ("standard", "hamiltonian")]
    first, *_ = (line for line in next_steps("coupledqk", *runs).splitlines() if "explore" in line)
    assert shlex.split(first) == ["coupledqk", "explore", *map(str, runs), "--serve"]
