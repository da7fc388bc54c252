"""The command line as a user meets it."""

import json
import subprocess
import sys

import pytest

from coupledqk.cli import main
from coupledqk.variants import VARIANTS


def test_params_agrees_with_the_paper_in_every_row_at_60m(capsys: pytest.CaptureFixture[str]) -> None:
    main(["params", "--json"])
    rows = {row["variant"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows.keys() == VARIANTS.keys()
    assert {name for name, row in rows.items() if row["agrees"]} == {
        name for name, row in rows.items() if row["in_paper"]
    }
    assert rows["hamiltonian"]["over_standard"] == 65_600
    assert not any(row["agrees"] is False for row in rows.values())


def test_params_says_where_the_paper_disagrees(capsys: pytest.CaptureFixture[str]) -> None:
    main(["params", "--preset", "medium", "--positions", "512"])
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line}
    assert lines["standard"].split()[-2:] == ["152.3M", "yes"]
    assert lines["hamiltonian"].split()[-2:] == ["152.4M", "yes"]
    assert lines["gqa"].split()[-2:] == ["144.4M", "NO"]
    assert "paper-notes" in lines["Where"]


def test_tiny_is_about_six_million_at_the_papers_mqar_vocabulary(capsys: pytest.CaptureFixture[str]) -> None:
    main(["params", "--preset", "tiny", "--vocab", "64", "--positions", "256", "--json"])
    rows = {row["variant"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["standard"]["agrees"]
    assert rows["hamiltonian"]["agrees"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["params", "--preset", "smal"], "did you mean 'small'"),
        (["parms"], "did you mean 'params'"),
        (["params", "--vocab", "0"], "vocab_size=0: expected at least 1"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    message = capsys.readouterr().err
    assert says in message
    assert message.count("\n") == 1


def test_help_loads_no_torch() -> None:
    code = """
import sys
from coupledqk.cli import main
try:
    main(["--help"])
except SystemExit:
    sys.exit("torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "params" in done.stdout
