"""Checks of the environment: packages, extras, devices, folders, tokenizer and the speed of matrix products.

Each check yields a `Finding` of one line. A check that fails does not raise, so that all problems are reported at once.
"""

import importlib.metadata
import os
import platform
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from . import __version__
from .data.cache import cache_folder
from .provenance import available_cores

State = Literal["ok", "absent", "problem"]
DEVELOPMENT = ("docs", "lint", "test")
"""Extras that only contributors need."""
NOTABLE_SPEEDUP = 1.5
REQUIREMENT = re.compile(
    r"""(?P<name>[\w.-]+)(?:\[.*?\])?\s*(?P<bounds>[^;]*)(?:;.*extra == ['"](?P<extra>[\w-]+)['"])?"""
)


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    name: str
    state: State
    """State of the component; "absent" means that it is optional and not available."""
    text: str
    """Description of the result and, if there is a problem, how to solve it."""


@dataclass(frozen=True)
class Requirement:
    name: str
    bounds: str
    """Version bounds as written, such as ">=5.15,<6"."""
    extra: str | None
    """The extra that requires it; None if the package itself does."""

    def trouble(self) -> str | None:
        """Why the requirement is not satisfied; None if it is."""
        try:
            installed = importlib.metadata.version(self.name)
        except importlib.metadata.PackageNotFoundError:
            return f"{self.name} is missing"
        for relation, bound in re.findall(r"(>=|<)\s*([\d.]+)", self.bounds):
            if (_numbers(installed) >= _numbers(bound)) != (relation == ">="):
                return f"{self.name} is {installed}, expected {self.bounds}"
        return None


def _numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version, without trailing zeros: 2.13.0+cpu is (2, 13)."""
    numbers = [int(part) for part in re.match(r"[\d.]*", version)[0].split(".") if part]  # pyright: ignore[reportOptionalSubscript]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def requirements() -> list[Requirement]:
    """The requirements of the installed package, including those of its extras."""
    found = []
    for line in importlib.metadata.requires("coupledqk") or ():
        match = REQUIREMENT.match(line)
        if match is not None and match["name"] != "coupledqk":
            found.append(Requirement(match["name"], match["bounds"].strip(), match["extra"]))
    return found


def examine() -> Iterator[Finding]:
    """Yields all findings, each as soon as it is available."""
    system = f"{platform.system()} {platform.machine()}, {available_cores()} cores"
    yield Finding("coupledqk", "ok", f"{__version__}, Python {platform.python_version()}, {system}")
    yield from _packages()
    checks: dict[str, Callable[[], tuple[State, str]]] = {
        "torch": _torch,
        "gpu": _gpu,
        "triton": _triton,
        "working folder": lambda: _folder(Path.cwd()),
        "cache folder": lambda: _folder(cache_folder()),
        "tokenizer": _tokenizer,
        "matrix products": _matrix_products,
    }
    for name, check in checks.items():
        try:
            yield Finding(name, *check())
        except Exception as error:  # an import can fail in many ways, which are reported as findings
            yield Finding(name, "problem", f"{type(error).__name__}: {' '.join(str(error).split())}")


def _packages() -> Iterator[Finding]:
    """One finding for the required packages, and one for each extra."""
    try:
        asked = requirements()
    except importlib.metadata.PackageNotFoundError:
        yield Finding("packages", "problem", "coupledqk itself is not installed: pip install coupledqk")
        return
    extras = sorted({each.extra for each in asked if each.extra} - set(DEVELOPMENT))
    for extra in [None, *extras]:
        troubles = [trouble for each in asked if each.extra == extra and (trouble := each.trouble())]
        if extra is None:
            text = (
                f"{'; '.join(troubles)}: pip install coupledqk" if troubles else "all required packages are installed"
            )
            yield Finding("packages", "problem" if troubles else "ok", text)
        elif troubles:
            yield Finding(f"extra {extra}", "absent", f"{'; '.join(troubles)}: pip install 'coupledqk[{extra}]'")
        else:
            yield Finding(f"extra {extra}", "ok", "installed")


def _torch() -> tuple[State, str]:
    import torch

    return "ok", f"{torch.__version__}, {torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}"


def _gpu() -> tuple[State, str]:
    import torch

    if torch.cuda.is_available():
        devices = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
        return "ok", ", ".join(f"{device.name} ({device.total_memory / 2**30:.0f} GiB)" for device in devices)
    if torch.backends.mps.is_available():
        return "ok", "Apple GPU (mps)"
    build = "this PyTorch is built for the CPU only" if torch.version.cuda is None else "no CUDA device is visible"
    return "absent", f"{build}; training runs on the CPU"


def _triton() -> tuple[State, str]:
    import torch

    try:
        version = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return "absent", "not installed; the PyTorch implementation of the dynamics is used"
    if not torch.cuda.is_available():
        return "absent", f"{version}, but its kernels need a CUDA device; the PyTorch implementation is used"
    return "ok", version


def _folder(folder: Path) -> tuple[State, str]:
    """Whether files can be written to a folder or, if it does not exist, to its nearest existing parent."""
    place = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        advice = "choose another one with COUPLEDQK_CACHE" if folder == cache_folder() else "choose another folder"
        return "problem", f"{folder} cannot be written to ({error.strerror}): {advice}"
    return "ok", f"{folder}, {shutil.disk_usage(place).free / 1e9:,.0f} GB free"


def _tokenizer() -> tuple[State, str]:
    from .data.tokenizers import train_bpe

    text = "".join(f"{n} squared is {n * n}.\n" for n in range(200))
    tokenizer = train_bpe("bpe:300", [text])
    same = tokenizer.decode(tokenizer.encode(text)) == text
    return (
        ("ok", "a BPE tokenizer was trained and encodes a text losslessly")
        if same
        else ("problem", "decoding an encoded text did not reproduce it")
    )


def _matrix_products(size: int = 1024) -> tuple[State, str]:
    """The speed of products of square matrices on the fastest device, each measured for a fraction of a second."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    x = torch.randn(size, size, device=device)
    speed = _speed(lambda: float((x @ x)[0, 0]), size)  # float waits for the device
    text = f"{speed / 1e9:,.0f} GFLOP/s in float32 on {device}"
    if device == "cpu" and torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available():
        packed = x.to_mkldnn()
        text += _advice(speed, _speed(lambda: torch.nn.functional.linear(packed, packed), size))
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    busy = f"; other programs are running (load {load:.1f})" if load > available_cores() else ""
    return "ok", text + busy


def _speed(product: Callable[[], object], size: int, seconds: float = 0.3) -> float:
    """FLOP/s of a product of square matrices."""
    product()  # the first product loads libraries
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        product()
        count += 1
    return 2 * size**3 * count / (time.perf_counter() - start)


def _advice(mkl: float, onednn: float) -> str:
    """MKL, which computes PyTorch's products, is slower than oneDNN by a factor of two where it does not use AVX-512."""
    if onednn < NOTABLE_SPEEDUP * mkl:
        return ""
    return f"; {onednn / 1e9:,.0f} are possible: see 'AMD processors with AVX-512' in docs/performance.md"
