"""Optional dependencies and heavy libraries are imported only where they are needed."""

import pkgutil
import subprocess
import sys

import coupledqk

MODULES = [module.name for module in pkgutil.walk_packages(coupledqk.__path__, "coupledqk.") if "._" not in module.name]

FENCE = """
import importlib.metadata, re, sys

def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()

installed = {normal(d.metadata["Name"]): d.requires or [] for d in importlib.metadata.distributions()}
allowed, queue = {"coupledqk"}, sys.argv[1:]
while queue:                                   # these packages and what they depend on
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


def run(code: str, *packages: str) -> str:
    done = subprocess.run([sys.executable, "-c", code, *packages], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_module_imports_with_torch_alone_except_that_data_needs_numpy_and_hf_needs_transformers() -> None:
    with_data = [name for name in MODULES if name.startswith(("coupledqk.data", "coupledqk.tasks"))]
    others = [
        name
        for name in MODULES
        if name not in with_data and not name.startswith(("coupledqk.coupling", "coupledqk.hf"))
    ]
    assert "coupledqk.attention" in others
    run(FENCE + "\n".join(f"import {name}" for name in others), "torch")
    run(FENCE + "\n".join(f"import {name}" for name in with_data), "torch", "numpy")


def test_the_import_fence_blocks_packages_that_are_not_listed() -> None:
    said = run(FENCE + "try:\n    import tyro\nexcept ImportError as error:\n    print(error)", "torch")
    assert "tyro is not installed" in said


def test_importing_the_package_loads_no_torch() -> None:
    assert run("import sys, coupledqk; print('torch' in sys.modules)").strip() == "False"


def test_reports_and_the_command_line_load_no_torch() -> None:
    modules = [
        "report.figures",
        "report.lab_page",
        "report.runs_page",
        "cli",
        "analysis.style",
        "analysis.tables",
        "bench.tables",
    ]
    code = "\n".join(f"import coupledqk.{name}" for name in modules)
    assert run(f"import sys\n{code}\nprint('torch' in sys.modules)").strip() == "False"


def test_functions_of_coupledqk_analysis_are_not_shadowed_by_modules_of_the_same_name() -> None:
    code = "import coupledqk.analysis as a, coupledqk.analysis.motion\nprint(all(callable(getattr(a, n)) for n in a.__all__))"
    assert run(code).strip() == "True"


def test_the_public_names_are_sorted_and_exist() -> None:
    assert coupledqk.__all__ == sorted(
        coupledqk._HOME, key=lambda name: (name.upper() != name, not name[0].isupper(), name)
    )
    for name in coupledqk.__all__:
        assert getattr(coupledqk, name) is not None
        assert name in dir(coupledqk)
