"""The licences of the dependencies, and no network access unless requested."""

import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

from small_runs import TINY

ROOT = Path(__file__).parents[1]
OPEN = ("MIT", "BSD", "Apache", "Python Software Foundation", "PSF")
FOR_DEVELOPERS = ("test", "docs", "lint")


def dependencies() -> set[str]:
    """The dependencies of the package and its extras, without those for development."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [
        each for name, of in project["optional-dependencies"].items() if name not in FOR_DEVELOPERS for each in of
    ]
    names = {re.split(r"[\[<>=!~; ]", each)[0] for each in (*project["dependencies"], *extras)}
    return names - {"coupledqk"}


def licence(name: str) -> str:
    """All licence information in the metadata of an installed package."""
    about = metadata.metadata(name)
    classifiers = [each for each in about.get_all("Classifier") or [] if each.startswith("License ::")]
    return " ".join([about.get("License-Expression") or "", *classifiers, (about.get("License") or "")[:200]])


def test_every_dependency_is_listed_with_an_open_licence() -> None:
    listed = dict(re.findall(r"^\| ([\w-]+) \| ([\w .-]+?) \|$", (ROOT / "SECURITY.md").read_text(), re.MULTILINE))
    listed.pop("package", None)
    assert dependencies() <= listed.keys()
    for name in sorted(dependencies()):
        assert listed[name].startswith(OPEN), name
        try:
            found = licence(name)
        except metadata.PackageNotFoundError:
            continue  # an extra that is not installed
        kind = listed[name].split("-")[0].split(" and")[0]
        assert kind in found, f"{name} is listed as {listed[name]}; its metadata say {found}"


NO_SOCKETS = """
import sys
def audit(event, arguments):
    if event in ("socket.connect", "socket.bind", "socket.sendto", "socket.getaddrinfo", "socket.gethostbyname"):
        raise SystemExit(f"a command used the network: {event} {arguments}")
sys.addaudithook(audit)
from coupledqk.cli import main
for words in WORDS:
    try:
        main(words)
    except SystemExit as end:
        if end.code:
            raise
"""


def test_the_main_commands_use_no_network(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("COUPLEDQK_CACHE", str(tmp_path / "cache"))
    text, run = tmp_path / "text.txt", str(tmp_path / "runs/one")
    text.write_text("".join(f"{n} squared is {n * n}.\n" for n in range(36)))
    settings = [f"--{name}={value}" for name, value in {**TINY, "corpus": text, "threads": 1}.items()]
    words = [
        ["data", "info", "--corpus", str(text), "--tokenizer", "bytes"],
        ["train", "--variant", "euler", "--out", run, *settings],
        ["eval", run],
        ["generate", run, "--prompt", "7 sq", "--tokens", "3"],
        ["runs", str(tmp_path / "runs")],
        ["report", run, "--out", str(tmp_path / "report.html")],
        ["explore", run, "--text", "7 squared", "--out", str(tmp_path / "explore.html")],
        ["params", "--preset", "nano"],
        ["reproduce", "--list"],
        ["plan"],
    ]
    code = f"WORDS = {words!r}\n{NO_SOCKETS}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "network" not in done.stderr
