"""Tests whether coupling helps on a given text: trains pairs of runs with standard and coupled attention until the result is
conclusive or a time budget is spent."""

import math
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ..baselines import objection, read_baselines
from ..config import LMConfig
from ..data.corpora import open_corpus
from ..errors import CoupledQKError
from ..measure import BITS_PER_BYTE, PERPLEXITY
from ..outcome import Claim, Outcome, Verdict
from ..outcome_file import write
from ..provenance import available_cores
from ..sealed import read_sealed_json, write_json
from ..statistics import LEVEL, SequentialTest, compare_prior, power, scipy_special
from ..terminal import tokenizing
from ..variants import variant
from .answer import answer
from .budget import FEWEST_PAIRS, RECIPE, Choice, Text, choose, detectable_effect, open_text, settings_of
from .cells import Plan, failure, make_plan
from .coherence import coherence
from .experiment import Experiment, Grid, Scale
from .laboratory import check_jobs, run_plans
from .machines import LOCAL, Machines
from .outcomes import Values, measured, outcome
from .overview import GridProgress, Silent
from .runner import Overview, Queue
from .verdicts import judge_all

COUPLED = ("standard", "euler")
OTHERS = ("hamiltonian", "diff", "mlp_only", "query_residual", "key_residual", "kick", "drift", "linear", "shared_mlp")
"""Other forms of coupling, and controls that add the same parameters without coupling."""
SCALE = "mini"
LONGER = 4
"""Multiple of the number of pairs for which the outlook at the end is computed."""


def compare(
    corpus: str,
    minutes: float = 30,
    *,
    variants: Sequence[str] = COUPLED,
    seeds: Sequence[int] = (),
    jobs: int | None = None,
    machines: Machines = LOCAL,
    out: str | Path = "compare",
    progress: bool = True,
    stop: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Tests whether coupling lowers perplexity on a text, which is a file, a folder or the name of a corpus.

    Trains pairs of small models, with standard attention and with the other `variants`, until the result for the second
    variant is conclusive, equivalence within ±1% is shown, or `minutes` have passed. If `seeds` are given, exactly these
    are trained. The outcome's `answer` contains the result in words.
    """
    comparison = Comparison.open(corpus, minutes, variants, seeds, jobs, Path(out), machines)
    comparison.run(GridProgress() if progress else Silent(), stop)
    return comparison.conclude()


@dataclass(frozen=True)
class Comparison:
    """A comparison on one text: the runs that fit the budget and the folder in which they are stored."""

    text: Text
    choice: Choice
    variants: tuple[str, ...]
    """The attention variants. The first is the baseline, and the primary claim is about the second."""
    seeds: tuple[int, ...]
    sequential: bool
    """Whether the comparison may stop before all seeds are trained."""
    minutes: float
    jobs: int
    out: Path
    machines: Machines = LOCAL
    began: float = field(default_factory=lambda: time.monotonic())
    """Start time of the command, in seconds of the monotonic clock. The budget includes everything the command does."""

    @classmethod
    def open(
        cls,
        corpus: str,
        minutes: float,
        variants: Sequence[str] = COUPLED,
        seeds: Sequence[int] = (),
        jobs: int | None = None,
        out: Path = Path("compare"),
        machines: Machines = LOCAL,
    ) -> "Comparison":
        """Tokenizes the text, measures the speed of each variant on this machine, and chooses what fits the budget."""
        if jobs is None and machines.engine != "local":
            raise CoupledQKError(
                f"--engine {machines.engine}: add --jobs, the number of runs that the cluster trains at a time, on which the "
                "number of pairs depends"
            )
        if len(variants) < 2 or len(set(variants)) < len(variants):
            raise CoupledQKError(
                f"variants {', '.join(variants)}: expected a baseline and at least one other, each once"
            )
        for name in variants:
            variant(name)  # raises now, rather than after tokenizing, if there is no such variant
        began = time.monotonic()
        if not 0 < minutes < math.inf:
            raise CoupledQKError(f"--minutes {minutes:g}: expected a time above 0")
        scipy_special()  # raises now, rather than after the measurement, if SciPy is missing
        jobs = available_cores() if jobs is None else jobs
        check_jobs(jobs)
        if len(seeds) == 1:
            raise CoupledQKError(f"--seeds {seeds[0]}: expected at least two, since one pair cannot be tested")
        with tokenizing() as on_bytes:
            text = open_text(corpus, on_bytes)
        choice = choose(text, variants, minutes, jobs, out, len(seeds), began)
        own = tuple(seeds) or tuple(range(choice.pairs))
        return cls(text, choice, tuple(variants), own, not seeds, minutes, jobs, out, machines, began)

    def describe(self) -> str:
        """A description of the planned runs, their expected duration and the effect they can detect."""
        text, choice = self.text, self.choice
        most = "at most " if self.sequential else ""
        sample = f"a sample of {choice.tokens:,} of" if choice.tokens < text.train_tokens else "all of"
        sentences = [
            f"{text.name}: {most}{choice.pairs} pairs of runs of {choice.steps:,} steps, {choice.passes} over "
            f"{sample} the {text.train_tokens:,} training tokens, about {choice.minutes:.0f} minutes."
        ]
        if choice.mode.compiled:
            sentences.append(f"The models are {choice.mode}, which is faster here.")
        if choice.pairs > 1:
            sentences.append(
                f"80% power to detect an effect of {100 * self.detectable:.1f}%, if pairs vary as in earlier comparisons "
                f"(standard deviation {100 * compare_prior().sd:.1f}%)."
            )
        return " ".join(sentences)

    @property
    def detectable(self) -> float:
        """The effect that the comparison has 80% power to detect, if pairs vary as in earlier comparisons."""
        prior = compare_prior()
        if self.sequential:
            return self.choice.detectable
        return power.detectable_effect(len(self.seeds), prior.sd, prior_df=prior.df)

    def run(self, overview: Overview, stop: Callable[[], bool] = lambda: False) -> Queue:
        """Trains pairs until the result is conclusive or the budget is spent."""
        deadline = self.began + 60 * self.minutes

        def done() -> bool:
            return self.sequential and (self.conclusive_at() is not None or time.monotonic() > deadline)

        # every test has its own level, so an outcome has no verdicts before `conclude`
        plan = self.plan(len(self.seeds), claims=())
        return run_plans([plan], self.jobs, overview, stop, done, self.machines)

    def conclusive_at(self) -> int | None:
        """The number of pairs at the first conclusive test, taking finished pairs in the order of seeds; None if there is
        none."""
        values = measured(self.plan(len(self.seeds)), "best")
        for n in range(FEWEST_PAIRS, self.finished_pairs() + 1):
            if self._verdicts(values, n)[0].finding != "inconclusive":
                return n
        return None

    def _verdicts(self, values: Values, n: int) -> tuple[Verdict, ...]:
        """The verdicts on all claims after `n` pairs, the primary one first, with variances moderated by those of earlier
        comparisons."""
        seeds = self.seeds[:n]
        samples = {label: {seed: runs[seed] for seed in seeds if seed in runs} for label, runs in values.items()}
        return tuple(judge_all(self.claims, samples, PERPLEXITY.better, compare_prior(), self.level(n)))

    def finished_pairs(self) -> int:
        """The number of leading seeds whose runs have all finished or diverged."""
        plan = self.plan(len(self.seeds))
        for n, seed in enumerate(self.seeds):
            runs = [plan.run(cell) for cell in plan.cells if cell.seed == seed]
            if not all(run.result or failure(run).get("diverged") for run in runs):
                return n
        return len(self.seeds)

    def level(self, n: int) -> float:
        """The level of the test after `n` pairs.

        It depends on the planned number of pairs, even if the budget runs out earlier, so that running the command again can
        add the remaining pairs without exceeding the error rate.
        """
        if not self.sequential or n < 2:
            return LEVEL
        test = SequentialTest(len(self.seeds), min(FEWEST_PAIRS, n), prior_df=compare_prior().df)
        return test.nominal_level(n)

    @property
    def claims(self) -> tuple[Claim, ...]:
        """One claim about each variant against the baseline; the first is the primary claim."""
        baseline, *others = self.variants
        text = f"has lower perplexity than {baseline} on {self.text.name}"
        return tuple(Claim(f"{name} {text}", "lower", name, baseline, primary=i == 0) for i, name in enumerate(others))

    def plan(self, n: int, claims: Sequence[Claim] | None = None) -> Plan:
        """The first `n` pairs as an experiment with the comparison's claims or with others."""
        text, choice = self.text, self.choice
        caption = (
            f"Each attention was trained {n} times for {choice.steps:,} steps: {choice.passes} over "
            f"{choice.tokens:,} of {text.train_tokens:,} training tokens, validated on {choice.valid_tokens:,}. A seed gives "
            "all of them the same initial weights and the same order of the text. The models are small: larger ones may differ."
        )
        scale = Scale(
            metric=PERPLEXITY,
            grid=(Grid(self.variants),),
            recipe=RECIPE,
            seeds=self.seeds[:n],
            settings=settings_of(text, choice),
            claims=self.claims if claims is None else tuple(claims),
        )
        title = f"Does coupling help on {text.name}?"
        experiment = Experiment("compare", title, "your own text", caption, {SCALE: scale}, command=self.command)
        return make_plan(experiment, SCALE, self.out)

    @property
    def command(self) -> str:
        """The command line of the comparison, with the name of the text instead of its path."""
        more = [name for name in self.variants if name not in COUPLED]
        words = ["coupledqk compare --corpus", shlex.quote(self.text.name), f"--minutes {self.minutes:g}"]
        if set(OTHERS) <= set(more):
            words.append("--all")
            more = [name for name in more if name not in OTHERS]
        words += ["--variants", *more] if more else []
        words += [] if self.sequential else ["--seeds", *map(str, self.seeds)]
        return " ".join(words)

    def conclude(self) -> Outcome:
        """Writes and returns the outcome of the counted pairs, with the answer in words and the coherence of the text."""
        decided = self.conclusive_at() if self.sequential else None
        n = decided or max(1, self.finished_pairs())
        plan = self.plan(n)
        found = replace(outcome(plan), verdicts=self._verdicts(measured(plan, "best"), n))
        config = {**found.config, "task": {**found.config["task"], "corpus": self.text.name}}
        measured_coherence, why_not = self._coherence()
        slowdowns = self.choice.slowdowns(self.variants[1], self.variants[0])
        why_nothing, learned = self._learned(plan, found)
        words = answer(found, self.text.name, measured_coherence, why_not, slowdowns, why_nothing)
        words = (" ".join([words[0], *learned, *self._outlook(found)]), *words[1:])
        found = replace(found, config=config, answer=words, coherence=measured_coherence)
        write(found, plan.outcome)
        return found

    def _learned(self, plan: Plan, found: Outcome) -> tuple[str | None, list[str]]:
        """The reason why the baseline has not learned enough for a conclusion, or None, and sentences that compare it with
        n-gram models of the same text."""
        row = next(row for row in found.rows if row.label == self.variants[0])
        run = next((plan.run(cell) for cell in plan.cells if plan.run(cell).result), None)
        ngrams = read_baselines(run.result) if run else ()
        if not ngrams or (bits := row.companions.get(BITS_PER_BYTE.key)) is None:
            return None, []
        if why := objection(bits, ngrams):
            return why, ["More text or a larger --minutes makes longer runs, which learn more."]
        others = ", ".join(f"{each.name} {each.bits_per_byte:.3f}" for each in ngrams if each.order > 1)
        return None, [f"{row.label} reaches {bits:.3f} bits per byte (n-gram models of the same text: {others})."]

    def _outlook(self, found: Outcome) -> list[str]:
        """The effect that more pairs could detect, if the result is inconclusive, and how to add planned pairs."""
        primary = next(verdict for verdict in found.verdicts if verdict.claim.primary)
        if primary.finding != "inconclusive" or primary.evidence is None:
            return []
        n, level, prior_df = primary.evidence.n[0], 1 - primary.evidence.confidence, compare_prior().df
        longer = (
            detectable_effect(LONGER * n, 1.0)
            if self.sequential
            else power.detectable_effect(LONGER * n, 1.0, prior_df=prior_df)
        )
        could = primary.evidence.detectable * longer / power.detectable_effect(n, 1.0, level, prior_df=prior_df)
        sentences = [f"With {LONGER} times as many pairs it would have 80% power to detect {100 * could:.1f}%."]
        if (left := len(self.seeds) - self.finished_pairs()) > 0:
            sentences.append(f"The same command adds the planned pairs that did not fit into the budget ({left}).")
        return sentences

    def _coherence(self) -> tuple[dict[str, dict[str, Any]], str]:
        """The coherence by the name of the text, measured once and stored, or an empty dict and the reason for its absence."""
        memory, text = self.out / "coherence.json", self.text
        known = read_sealed_json(memory, "move it away; it is then measured again") if memory.is_file() else {}
        if known.get("text") == text.hash and isinstance(known.get("coherence"), dict):
            return {text.name: known["coherence"]}, ""
        try:
            found = asdict(coherence(piece.text for _, piece in open_corpus(LMConfig(corpus=text.corpus)).stream()))
        except CoupledQKError as error:
            return {}, str(error)
        write_json(memory, {"text": text.hash, "coherence": found})
        return {text.name: found}, ""
