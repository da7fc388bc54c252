"""Benchmarks over independent launches: intervals, stopping, and detection of a busy machine."""

import json
import statistics
from dataclasses import replace
from itertools import count

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coupledqk.bench import compiled, launches, throughput
from coupledqk.bench.benchmark import Benchmark
from coupledqk.bench.compiled import NotCompiledError, compile_model
from coupledqk.bench.conditions import Counters, conditions, core_times, read_counters, reasons, verdict
from coupledqk.bench.contenders import Contender, Setup, our_contenders, peer_contenders
from coupledqk.bench.launches import Repetition, launch_here, repeat, shortfalls
from coupledqk.bench.orders import Launch, Order
from coupledqk.bench.records import Interval, ThroughputResult
from coupledqk.bench.tables import report
from coupledqk.bench.timing import speeds_over_launches
from coupledqk.cli import main

SMALL = ["--preset", "nano", "--vocab", "97", "--seq-len", "16", "--rounds", "2", "--device", "cpu", "--threads", "1"]


def test_the_interval_of_a_median_consists_of_order_statistics() -> None:
    five = Interval.of([0.95, 0.91, 0.99, 0.93, 0.97])
    assert (five.median, five.low, five.high) == (0.95, 0.91, 0.99)
    assert five.confidence == 1 - 2 / 2**5
    eleven = Interval.of([float(i) for i in range(11)])
    assert (eleven.median, eleven.low, eleven.high) == (5, 2, 8)
    assert eleven.confidence == 1 - 2 * (1 + 11 + 55) / 2**11
    assert Interval.of([0.9]) == Interval(0.9, 0.9, 0.9, 0.0)


def test_the_interval_has_its_stated_coverage() -> None:
    generator = torch.Generator().manual_seed(0)
    for n in (5, 8, 13):
        # skewed as timings are; the median of an exponential distribution is ln 2
        draws = torch.empty(2000, n).exponential_(generator=generator).tolist()
        found = [Interval.of(row) for row in draws]
        share = statistics.fmean(each.low <= 0.6931472 <= each.high for each in found)
        assert found[0].confidence >= 0.9
        assert share == pytest.approx(found[0].confidence, abs=0.03)


@given(st.lists(st.floats(0.5, 2), min_size=1, max_size=7))
def test_intervals_reflect_shifted_ratios_between_launches_but_not_slow_launches(shifts: list[float]) -> None:
    """Ratios are compared within rounds: only what differs between the contenders of one launch widens the interval."""
    slowed = [{"a": [s, 2 * s], "b": [2 * s, 4 * s]} for s in shifts]
    assert speeds_over_launches(slowed, "a", 8)["b"].over_launches.width == pytest.approx(0)
    shifted = [{"a": [1.0, 1.0], "b": [s, s]} for s in shifts]
    found = speeds_over_launches(shifted, "a", 8)["b"]
    assert found.by_launch == pytest.approx([1 / s for s in shifts])
    assert found.seconds == tuple(s for shift in shifts for s in (shift, shift))
    assert found.over_launches == Interval.of(found.by_launch)


class FakeClock:
    """Every launch takes a minute."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def launch(self, number: int) -> int:
        self.now += 60
        return number


def test_launching_continues_until_the_condition_holds() -> None:
    clock = FakeClock()
    assert repeat(clock.launch, lambda found: len(found) >= 7, fewest=5, minutes=60, clock=clock) == list(range(7))
    clock = FakeClock()
    assert len(repeat(clock.launch, lambda found: True, fewest=5, minutes=None, clock=clock)) == 5


def test_no_launch_starts_that_would_exceed_the_time_limit() -> None:
    clock = FakeClock()
    found = repeat(clock.launch, lambda found: False, fewest=5, minutes=3.5, clock=clock)
    assert len(found) == 3
    assert clock.now == 180
    clock = FakeClock()
    assert len(repeat(clock.launch, lambda found: False, fewest=5, minutes=0.5, clock=clock)) == 1


def test_a_long_first_launch_does_not_prevent_a_second() -> None:
    clock = FakeClock()

    def launch(number: int) -> int:
        clock.now += 180 if number == 0 else 0  # the first launch compiles
        return clock.launch(number)

    assert len(repeat(launch, lambda found: False, fewest=5, minutes=6.5, clock=clock)) == 3


def test_what_the_time_limit_prevented_is_reported_in_one_line() -> None:
    found = {"euler": Interval(0.95, 0.94, 0.96, 0.9), "llama": Interval(0.9, 0.85, 0.93, 0.9)}
    (said,) = shortfalls(found, 12, Repetition(until=0.01, minutes=10))
    assert said.startswith(
        "--until 0.01 was not reached within --minutes 10 (12 launches): the interval of llama is 0.850–0.930;"
    )
    assert shortfalls(found, 12, Repetition(until=0.1)) == []
    assert "10 (4 launches)" in shortfalls(found, 4, Repetition(until=0.1))[0]  # too few to trust the interval
    assert shortfalls(found, 3, Repetition(launches=5, minutes=2)) == [
        "only 3 of 5 launches were made within --minutes 2"
    ]
    assert shortfalls(found, 5, Repetition(launches=5, minutes=2)) == []


def counters(time: float, busy: float, own: float, stolen: float = 0.0, load: float = 0.0) -> Counters:
    return Counters(time, load, busy, stolen, own)


def test_a_quiet_machine_is_reported_as_quiet() -> None:
    found = conditions(counters(0, 5, 1, load=1.9), counters(10, 25.2, 21), threads=2, cores=2)
    assert found is not None
    assert found.other_cores == pytest.approx(0.02)
    assert reasons(found) == []
    assert verdict([found, found]) == "the machine was quiet: other processes used at most 0.02 of 2 cores"


def test_a_busy_machine_is_reported_as_busy() -> None:
    others = conditions(counters(0, 0, 0), counters(10, 20, 12), threads=2, cores=2)
    stolen = conditions(counters(0, 0, 0), counters(10, 10, 10, stolen=1), threads=2, cores=2)
    loaded = conditions(counters(0, 0, 0, load=3.4), counters(10, 20, 20), threads=2, cores=2)
    assert others is not None
    assert stolen is not None
    assert loaded is not None
    assert reasons(others) == ["other processes used 0.8 of 2 cores"]
    assert reasons(stolen) == ["5.0% of the time was stolen by the hypervisor"]
    assert reasons(loaded) == ["the load average was 3.4, while the benchmark used 2 thread(s)"]
    quiet = replace(loaded, load=1.0)
    said = verdict([quiet, stolen, others])
    assert said.startswith("THE MACHINE WAS BUSY in 2 of 3 launches: other processes used 0.8 of 2 cores")
    assert verdict([]).startswith("it is unknown whether the machine was busy")
    assert conditions(None, None, threads=2, cores=2) is None


def test_core_times_are_parsed_by_column() -> None:
    # user nice system idle iowait irq softirq steal guest guest_nice; guests are counted in user already
    assert core_times(["cpu0 10 20 30 1000 500 1 2 7 10 20", "cpu1 1 0 0 9 9 0 0 0 0 0"]) == (64, 7)
    now = read_counters([0])
    if now is not None:
        later = read_counters([0])
        assert later is not None
        assert later.busy >= now.busy
        assert later.own >= now.own


def order_of(variants: list[str], peers: tuple[str, ...] = (), **settings: object) -> Order:
    contenders = [
        *our_contenders("nano", variants, vocab_size=31, n_layers=1),
        *peer_contenders("nano", peers, vocab_size=31, n_layers=1),
    ]
    return Order(tuple(contenders), Setup(1, 8), rounds=1, **settings)


def test_launches_alternate_the_order_of_contenders(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []
    build = Contender.build
    monkeypatch.setattr(Contender, "build", lambda self, device: built.append(self.name) or build(self, device))
    monkeypatch.setattr(launches, "launch_process", lambda order, caches, say: launch_here(order, say))
    found, notes = launches.launch_all(
        order_of(["euler"], training_only=True), Repetition(launches=3), lambda text: None
    )
    assert built == ["standard", "euler", "euler", "standard", "standard", "euler"]
    assert len(found) == 3
    assert not notes
    assert all(set(launch.seconds["training"]) == {0, 1} for launch in found)


def test_the_command_launches_processes_and_reports_the_width_of_the_interval(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main(["bench", *SMALL, "--variants", "standard", "--memory-batch", "0", "--training-only", "--launches", "2"])
    said = capsys.readouterr()
    assert "2 launches of 2 rounds" in said.out
    assert "the median over 2 launches" in said.out
    assert "50% confidence" in said.out
    assert "launch 2: forward + backward, round 2 of 2" in said.err
    assert "busy" in said.out.lower() or "quiet" in said.out


def test_an_error_in_a_launch_is_reported_as_without_launches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["bench", *SMALL, "--variants", "standard", "--launches", "1", "--seq-len", "16", "--batch", "0"])
    assert "batch=0: expected at least 1" in capsys.readouterr().err


@pytest.fixture
def fast_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler without code generation, in this process."""
    monkeypatch.setattr(compiled, "BACKEND", "aot_eager")
    monkeypatch.setattr(launches, "launch_process", lambda order, caches, say: launch_here(order, say))
    torch._dynamo.reset()


COMPILED = Benchmark(
    "mini", 97, ("hamiltonian",), batch=1, seq_len=16, rounds=1, compile=True, training_only=True, threads=1
)


@pytest.mark.usefixtures("fast_backend")
def test_compiled_contenders_are_timed_beside_the_eager_baseline() -> None:
    result = replace(COMPILED, peers=("nanogpt",), device="cpu").measure()
    assert isinstance(result, ThroughputResult)
    rows = {row.name: row for row in result.rows}
    assert list(rows) == ["standard", "hamiltonian", "nanogpt", "standard (eager)"]
    assert result.baseline == "standard"
    assert result.about.compiled
    assert all(row.memory is None for row in result.rows)
    assert rows["standard (eager)"].compile_seconds is None
    assert all(rows[name].compile_seconds > 0 for name in list(rows)[:3])
    assert "compile s" in report(result)
    assert json.dumps(result.about.notes) == "[]"


@pytest.mark.usefixtures("fast_backend")
def test_a_peer_that_cannot_be_compiled_is_left_out_with_a_one_line_note(monkeypatch: pytest.MonkeyPatch) -> None:
    right = throughput.compile_model

    def fails(contender: Contender, *arguments: object) -> float:
        if contender.peer:
            raise NotCompiledError("Unsupported: no rule for this")
        return right(contender, *arguments)

    monkeypatch.setattr(throughput, "compile_model", fails)
    said: list[str] = []
    benchmark = replace(COMPILED, peers=("nanogpt",), variants=("standard",), launches=2, device="cpu")
    result = benchmark.measure(said.append)
    assert [row.name for row in result.rows] == ["standard", "standard (eager)"]
    line = "nanogpt cannot be compiled and was left out (Unsupported: no rule for this)"
    assert result.about.notes == (line,)
    assert said.count(line) == 1
    assert line in report(result)
    assert "launch 2: compiling nanogpt" not in said


def test_a_failing_compiler_is_named_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(graph: object, inputs: object) -> None:
        raise RuntimeError("the back end\nis not there")

    monkeypatch.setattr(compiled, "BACKEND", broken)
    (contender,) = peer_contenders("nano", ["nanogpt"], vocab_size=31, n_layers=1)
    setup = Setup(1, 8)
    with pytest.raises(NotCompiledError, match="the back end") as raised:
        compile_model(contender, contender.build("cpu"), setup.random_batch(31), setup, check=False)
    assert "\n" not in str(raised.value)


def test_a_baseline_that_cannot_be_compiled_ends_the_benchmark(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = Launch({"training": {}}, {}, failed={0: "RuntimeError: no compiler"})
    monkeypatch.setattr(launches, "launch_process", lambda *arguments: failed)
    with pytest.raises(SystemExit):
        main(["bench", *SMALL, "--variants", "standard", "--compile"])
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("coupledqk: standard cannot be compiled and was left out (RuntimeError: no compiler)")


def test_until_applies_to_the_widest_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    order = order_of(["euler"])
    numbers = count()

    def narrowing(*arguments: object) -> Launch:
        ratio = 1.1 if next(numbers) < 2 else 1.0  # two outliers at the start
        return Launch({"training": {0: (1.0,), 1: (1 / ratio,)}}, {0: 1, 1: 1})

    monkeypatch.setattr(launches, "launch_process", narrowing)
    found, notes = launches.launch_all(order, Repetition(until=0.01, minutes=10), lambda text: None)
    assert len(found) == 11  # the smallest number of launches for which two values lie outside the interval
    assert not notes
