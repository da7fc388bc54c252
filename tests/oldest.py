"""Prints the oldest versions that pyproject.toml allows, for `make test-min`; PyTorch is installed beforehand."""

import re
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
extras = project["optional-dependencies"]
testing = [each for each in extras["test"] if each.startswith(("hypothesis", "pytest"))]
for requirement in (*project["dependencies"], *extras["gpt2"], *extras["lab"], *testing):
    found = re.fullmatch(r"([\w-]+)>=([\d.]+)", requirement)
    assert found, requirement
    if found[1] != "torch":
        print(f"{found[1]}=={found[2]}")
