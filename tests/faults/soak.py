"""The long form of the harness: `make soak`, or `python tests/faults/soak.py --parts flips,kills`.

The outcome of every part is stored in results/soak/soak.json as soon as it has ended, with its commit, machine and date, and
the table in docs/reliability.md is updated; parts that are not run again are kept. The exit code is 1 if a trial has failed;
the first failures are printed with tracebacks.
"""

import argparse
import dataclasses
import json
import re
import sys
import tempfile
import time
import traceback
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import torch  # noqa: E402
from parts import PARTS, Options  # noqa: E402
from samples import make_samples  # noqa: E402
from trials import FAILED, FINE, Tally  # noqa: E402

from coupledqk.files import read_json, write_atomic  # noqa: E402
from coupledqk.provenance import origin  # noqa: E402
from coupledqk.terminal import duration  # noqa: E402

RESULTS = HERE.parents[1] / "results" / "soak"
DOCUMENT = HERE.parents[1] / "docs" / "reliability.md"
SECTION = re.compile(r"(?<=<!-- soak: written by tests/faults/soak.py -->\n).*?(?=<!-- end of soak -->)", re.DOTALL)
"""The part of the document that contains the outcome."""
READING = "read "
"""Prefix of the names of parts that fuzz a reader; `readers` stands for all of them."""


def run_part(name: str, options: Options) -> tuple[dict[str, Any], list[str]]:
    """Runs a part in its own process, and returns its record and its failures."""
    torch.set_num_threads(1)
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="coupledqk-soak-") as folder:
        try:
            tally = PARTS[name].run(make_samples(Path(folder)), options)
        except Exception:  # a part that cannot be run has failed as a whole
            tally = Tally(failures=[traceback.format_exc()])
            tally.ends["traceback"] = 1
    kept = {
        "tried": PARTS[name].tried,
        "trials": tally.tried,
        "ends": {end: tally.ends[end] for end in (*FINE, *FAILED)},
        "failures": len(tally.failures),
        "figures": tally.figures,
        "options": dataclasses.asdict(options),
        "seconds": round(time.monotonic() - start, 1),
        **origin(),
    }
    return kept, tally.failures


def chosen(words: str | None) -> list[str]:
    """The parts with the given names; by default all, the longest first."""
    readers = [name for name in PARTS if name.startswith(READING)]
    if words is None:
        return [*(name for name in PARTS if name not in readers), *readers]
    names = [name for word in words.split(",") for name in (readers if word == "readers" else [word])]
    for name in names:
        if name not in PARTS:
            sys.exit(f"unknown part {name!r}: choose from readers, {', '.join(PARTS)}")
    return names


def table(parts: dict[str, Any]) -> str:
    """The outcome as a Markdown table, the readers in one row."""
    rows = {name: part for name, part in parts.items() if not name.startswith(READING)}
    readers = [part for name, part in parts.items() if name.startswith(READING)]
    if readers:
        ends = {end: sum(part["ends"][end] for part in readers) for end in (*FINE, *FAILED)}
        trials = sum(part["trials"] for part in readers)
        rows["readers"] = {"tried": f"spoiled files, {len(readers)} readers", "trials": trials, "ends": ends}
    lines = [
        f"| tried | trials | {' | '.join((*FINE, *FAILED))} |",
        f"| --- | --: | {' | '.join('--:' for _ in (*FINE, *FAILED))} |",
    ]
    for part in rows.values():
        numbers = [part["trials"], *(part["ends"][end] for end in (*FINE, *FAILED))]
        lines.append(f"| {part['tried']} | {' | '.join(f'{number:,}' for number in numbers)} |")
    return "\n".join(lines)


def page(parts: dict[str, Any]) -> str:
    """The table with its origin, for the documentation."""
    versions = next(iter(parts.values()))["versions"]
    commits = sorted({str(part["commit"]) for part in parts.values()})
    machines = sorted({part["machine"] for part in parts.values()})
    dates = sorted({part["started"][:10] for part in parts.values()})
    figures = [
        f"{name}: {value}"
        for key in ("steps", "kills")
        if key in parts
        for name, value in parts[key]["figures"].items()
    ]
    about = (
        f"`make soak` on {' and '.join(dates)}; commit {', '.join(commits)}; {'; '.join(machines)}; "
        f"torch {versions['torch']}; {duration(sum(part['seconds'] for part in parts.values()))} of processes."
    )
    return f"{table(parts)}\n\n{about}\n" + (
        f"\nLong training and kill chains: {'; '.join(figures)}.\n" if figures else ""
    )


def store(parts: dict[str, Any], out: Path) -> None:
    write_atomic(out / "soak.json", json.dumps(parts, indent=1) + "\n")
    if out == RESULTS:
        write_atomic(DOCUMENT, SECTION.sub(lambda _: page(parts), DOCUMENT.read_text("utf-8")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", help="names with commas between, such as flips,kills,readers; all unless given")
    parser.add_argument("--jobs", type=int, default=2, help="processes at once")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of soak.json")
    parser.add_argument("--table", action="store_true", help="print the table of the last soak and run nothing")
    for field in dataclasses.fields(Options):
        parser.add_argument(f"--{field.name}", type=int, default=field.default)
    given = parser.parse_args()
    file = given.out / "soak.json"
    parts: dict[str, Any] = read_json(file, "move it away, and run the soak again") if file.is_file() else {}
    failed = False
    if not given.table:
        options = Options(**{field.name: getattr(given, field.name) for field in dataclasses.fields(Options)})
        with ProcessPoolExecutor(given.jobs, max_tasks_per_child=1) as pool:
            waiting = {pool.submit(run_part, name, options): name for name in chosen(given.parts)}
            for done in as_completed(waiting):
                name = waiting[done]
                kept, failures = done.result()
                failed = failed or bool(failures)
                parts[name] = kept
                parts = {known: parts[known] for known in PARTS if known in parts}
                store(parts, given.out)
                print(f"{name}: {kept['trials']:,} trials, {len(failures)} failures, {kept['seconds']} s", flush=True)
                for failure in failures[:3]:
                    print(failure, file=sys.stderr, flush=True)
    print(f"\n{page(parts)}")
    sys.exit(failed or any(part["failures"] for part in parts.values()))


if __name__ == "__main__":
    main()
