"""coupledqk sweep"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config import RunConfig, identity
from ..errors import CoupledQKError, DivergedError
from ..run_folder import measure_name, variant_name
from ..schema import change
from .output import table
from .settings import WithSettings
from .train import train_one


@dataclass(frozen=True)
class Sweep(WithSettings):
    """Find a learning rate: a few short runs, a table and a plot. Interrupted, it goes on where it was.

    Try it:

        coupledqk sweep --variant euler --steps 100
        coupledqk sweep --variant standard --lrs 3e-4 1e-3 3e-3 --corpus my-texts/

    Any other setting is a flag by its name, as for `coupledqk train`.
    """

    lrs: tuple[float, ...] = (3e-4, 1e-3, 3e-3, 1e-2)
    """The peak learning rates to try."""
    out: Path | None = None
    """The folder of the runs; runs/sweep-NAME unless given."""
    json: bool = False
    """Print JSON instead of a table."""

    def run(self, flags: list[str]) -> None:
        base = self.run_config(flags)
        if len(set(self.lrs)) < 2:
            raise CoupledQKError(
                f"--lrs {' '.join(map(str, self.lrs))}: expected at least two learning rates to compare"
            )
        out = self.out or Path("runs") / f"sweep-{variant_name(base)}-{identity(base)}"
        rows = [measure(change(base, {"lr": lr}), out / f"lr-{lr:g}") for lr in sorted(set(self.lrs))]
        best = min(rows, key=lambda row: row["loss"])
        draw(rows, out / "sweep.svg", variant_name(base), measure_name(base))
        if self.json:
            print(json.dumps({"best_lr": best["lr"], "runs": rows, "plot": str(out / "sweep.svg")}, indent=2))
            return
        cells = [[f"{r['lr']:g}", r["text"], "best" if r is best else ""] for r in rows]
        print(table(["learning rate", f"best valid {measure_name(base)}", ""], cells))
        print(f"\n{out / 'sweep.svg'}")
        if best is rows[0] or best is rows[-1]:
            print("The best is at the edge of what was tried: widen --lrs before trusting it.")


def measure(config: RunConfig, path: Path) -> dict[str, Any]:
    """The best validation of one learning rate; a run that diverges counts as infinitely bad."""
    try:
        best = train_one(config, path).result["best"]
    except DivergedError as error:
        return {"lr": config.train.lr, "run": str(path), "loss": float("inf"), "text": "diverged", "error": str(error)}
    name = measure_name(config)
    text = f"{best[name]:.2f}" if name == "perplexity" else f"{best[name]:.4f}"
    return {"lr": config.train.lr, "run": str(path), "loss": best["loss"], "text": text, name: best[name]}


def draw(rows: list[dict[str, Any]], path: Path, name: str, measure: str) -> None:
    from ..files import write_atomic
    from ..report.chart import Series, line_chart

    points = [(row["lr"], row[measure]) for row in rows if measure in row]
    if not points:
        raise CoupledQKError("every run diverged: try smaller --lrs or a longer --warmup")
    chart = line_chart(
        [Series(name, points)],
        "peak learning rate",
        f"best validation {measure}",
        log_x=True,
        title=f"Learning rate of {name}",
    )
    write_atomic(path, chart)
