"""The lists in the README are complete; `test_documentation.py` runs its code."""

import re
from pathlib import Path

import pytest

from coupledqk.cli import COMMANDS
from coupledqk.variants import VARIANTS

README = Path(__file__).parent.parent / "README.md"
TEXT = README.read_text()


def test_the_readme_shows_all_commands_and_no_others() -> None:
    assert set(re.findall(r"`coupledqk (\w+)", TEXT)) | {"demo"} == set(COMMANDS)


@pytest.mark.parametrize("name", VARIANTS)
def test_the_readme_names_every_variant(name: str) -> None:
    assert f"`{name}`" in TEXT


def test_the_tree_in_the_readme_names_every_module_and_nothing_else() -> None:
    package = README.parent / "src" / "coupledqk"
    there = {path.name for path in package.iterdir() if not path.name.startswith(("_", "py."))}
    tree = TEXT.partition("src/coupledqk/\n")[2].partition("\n    tests/")[0]
    named = set(re.findall(r"(?<!\S)(\w+)(?:\.py|/)(?=[\s,])", tree))
    assert named == {name.removesuffix(".py") for name in there}
