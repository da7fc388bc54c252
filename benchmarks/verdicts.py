"""Checks the laboratory's statistics by long simulations, and estimates the prior of `compare` from outcomes of experiments.

    python benchmarks/verdicts.py
    python benchmarks/verdicts.py --trials 2000
    python benchmarks/verdicts.py --prior results/lab/qk-norm-mini.json results/lab/ablation-mini.json

The first command prints Markdown tables of coverage, error rates and power. The last one writes the package's
compare_prior.json.
"""

import argparse
import json
import math
from pathlib import Path

from coupledqk.errors import CoupledQKError
from coupledqk.lab.priors import outcome_prior
from coupledqk.outcome_file import read
from coupledqk.schema import to_dict
from coupledqk.statistics import SequentialTest, compare_prior, pairs_needed
from coupledqk.statistics.simulations import Table, prior_coverage, sequential_stops, table_coverage

PRIOR = Path(__file__).parents[1] / "src" / "coupledqk" / "statistics" / "compare_prior.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=20_000)
    parser.add_argument("--prior", nargs="+", type=Path, default=[], metavar="OUTCOME")
    options = parser.parse_args()
    if options.prior:
        try:
            write_prior(options.prior)
        except CoupledQKError as error:
            parser.error(str(error))
        return
    show_coverage(options.trials)
    show_sequential(options.trials)


def write_prior(paths: list[Path]) -> None:
    outcomes = [read(path) for path in paths]
    origin = ", ".join(f"{outcome.name} ({outcome.origin.commit}, {outcome.date})" for outcome in outcomes)
    data = to_dict(outcome_prior(outcomes, source=origin))
    del data["most_df"]
    PRIOR.write_text(json.dumps(data, indent=1) + "\n", "utf-8")
    print(f"{PRIOR}: {data}")


def show_coverage(trials: int) -> None:
    print("Coverage of 95% intervals, all arms against one baseline; length relative to plain intervals\n")
    print("| seeds | arms | variances | baseline's noise | plain | moderated | length |")
    print("| --: | --: | --- | --: | --: | --: | --: |")
    for n_seeds in (3, 5, 8):
        for n_arms in (2, 5, 12):
            for variance_df, noise in ((math.inf, 1.0), (4.0, 1.0), (math.inf, 2.0)):
                found = table_coverage(Table(n_seeds, n_arms, variance_df, noise), trials // n_arms)
                spread = "equal" if math.isinf(variance_df) else f"χ² with {variance_df:g} df"
                row = f"{n_seeds} | {n_arms} | {spread} | {noise:g} | {found.plain:.4f} | {found.moderated:.4f}"
                print(f"| {row} | {found.length:.2f} |", flush=True)
    prior = compare_prior()
    for n_seeds in (3, 5, 8):
        found = prior_coverage(n_seeds, prior, trials)
        row = f"{n_seeds} | 1 | compare's prior | – | {found.plain:.4f} | {found.moderated:.4f} | {found.length:.2f}"
        print(f"| {row} |", flush=True)


def show_sequential(trials: int) -> None:
    print(
        "\nSequential tests at 5%: share with a significant test, share with all intervals correct, mean pairs at the stop\n"
    )
    print("| looks | prior's df | effect / sd | significant | covered | pairs | pairs for a single test |")
    print("| --- | --: | --: | --: | --: | --: | --: |")
    for last in (8, 16, 32):
        for prior_df in (0.0, compare_prior().df):
            test = SequentialTest(last, prior_df=prior_df)
            detectable = test.detectable_effect(sd=1.0)
            for effect in (0.0, detectable, 2 * detectable):
                found = sequential_stops(test, effect, trials)
                single = pairs_needed(effect, 1.0, prior_df=prior_df) if effect else "–"
                row = f"{test.first} to {last} | {prior_df:.3g} | {effect:.2f} | {found.significant:.4f}"
                print(f"| {row} | {found.covered:.4f} | {found.mean_pairs:.1f} | {single} |", flush=True)


if __name__ == "__main__":
    main()
