"""What can be imported with what."""

import pkgutil
import subprocess
import sys

import coupledqk

MODULES = [
    module.name
    for module in pkgutil.walk_packages(coupledqk.__path__, "coupledqk.")
    if not module.name.rsplit(".")[-1].startswith("_")
]

ONLY_TORCH = """
import importlib.metadata, re, sys

def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()

installed = {normal(d.metadata["Name"]): d.requires or [] for d in importlib.metadata.distributions()}
allowed, queue = {"coupledqk"}, ["torch"]
while queue:                                   # torch and what it depends on
    name = queue.pop()
    if name not in allowed:
        allowed.add(name)
        queue += [normal(re.match(r"[\\w.-]+", r)[0]) for r in installed.get(name, []) if "extra ==" not in r]
owners = importlib.metadata.packages_distributions()

class Fence:
    def find_spec(self, name, path=None, target=None):
        distributions = {normal(owner) for owner in owners.get(name.partition(".")[0], [])}
        if distributions and not distributions & allowed:
            raise ModuleNotFoundError(f"{name} is not installed", name=name)

sys.meta_path.insert(0, Fence())
"""


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_module_imports_with_torch_alone() -> None:
    assert "coupledqk.attention" in MODULES
    run(ONLY_TORCH + "\n".join(f"import {name}" for name in MODULES))
    # and the fence holds
    assert "not installed" in run(ONLY_TORCH + "try:\n    import tyro\nexcept ImportError as e:\n    print(e)")


def test_importing_the_package_loads_no_torch() -> None:
    assert run("import sys, coupledqk; print('torch' in sys.modules)").strip() == "False"


def test_the_public_names_are_pinned_and_real() -> None:
    assert coupledqk.__all__ == sorted(
        coupledqk._HOME, key=lambda name: (name.upper() != name, not name[0].isupper(), name)
    )
    for name in coupledqk.__all__:
        assert getattr(coupledqk, name) is not None
        assert name in dir(coupledqk)
