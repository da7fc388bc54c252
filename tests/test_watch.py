"""`coupledqk watch`: the page of running and finished runs, in Python and in a real browser."""

import contextlib
import html
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browser import Browser, running_browser
from coupledqk.cli import main
from coupledqk.cli.watch import Watch
from coupledqk.recipes import recipe
from coupledqk.report.watch_page import watch_page, watch_part
from coupledqk.report.watch_server import WatchServer
from coupledqk.run_folder import RunFolder
from coupledqk.schema import to_toml
from test_report import HOSTILE, make_run, valid_record, write_lines


def text_of(part: str) -> str:
    return " ".join(html.unescape(re.sub("<[^>]*>", " ", re.sub("<style>.*?</style>", "", part, flags=re.S))).split())


def running_run(path: Path, variant: str = "euler", **info: Any) -> RunFolder:
    """A run of 50,000 steps that has logged 100, at two steps a second."""
    run = RunFolder(make_run(path, variant, finished=False, **info))
    train = [{"kind": "train", "step": step, "loss": 4 + 30 / step} for step in range(10, 101, 10)]
    heads = {"dt": [[0.1, 0.25], [0.125, 0.0625]]}
    write_lines(path / "metrics.jsonl", [*train, {**valid_record(100, 4.5), **heads}])
    timings = [{"step": step, "seconds": step / 2, "tokens_per_second": 1000.0 + step} for step in range(10, 101, 10)]
    write_lines(path / "timing.jsonl", timings)
    return run


def test_a_running_run_shows_its_progress_speed_and_time_left(tmp_path: Path) -> None:
    run = running_run(tmp_path / "mine")
    with run.lock():
        text = text_of(watch_part([tmp_path]))
    steps = run.config.train.steps
    left = (steps - 100) / 2 / 3600
    assert f"euler running 100 of {steps:,} {left:.1f} h 4.300 90.02 1,100" in text  # exp(4.5) is 90.02
    assert "step size dt, initially 0.1, after 100 steps head 0 1 layer 0 0.100 0.250" in text
    assert f"euler interrupted 100 of {steps:,} – 4.300" in text_of(watch_part([tmp_path]))


def test_runs_of_different_tasks_are_shown_separately_and_a_damaged_run_does_not_hide_the_others(
    tmp_path: Path,
) -> None:
    make_run(tmp_path / "lm" / "finished")
    other = RunFolder(make_run(tmp_path / "mqar", finished=False))
    (other.path / "config.toml").write_text(to_toml(recipe("mqar-mini")))
    record = {"kind": "valid", "step": 100, "loss": 1.5, "accuracy": 0.25}
    write_lines(other.path / "metrics.jsonl", [{"kind": "train", "step": 10, "loss": 2.0}, record])
    RunFolder(tmp_path / "begun").create(recipe("nano"))
    part = watch_part([tmp_path])
    assert re.findall("<h2>(.*)</h2>", part) == ["python-stdlib", "mqar", "Not shown yet"]
    assert "best perplexity" in text_of(part)
    assert "best accuracy" in text_of(part)
    assert "begun : " in text_of(part)
    assert "is not a run that was started" in text_of(part)


def test_a_run_that_is_damaged_while_it_is_watched_does_not_stop_the_updates_of_the_others(tmp_path: Path) -> None:
    run = running_run(tmp_path / "mine")
    damaged = make_run(tmp_path / "other", "diff")
    with WatchServer([tmp_path], port=0) as server:
        assert "finished" in text_of(server.current_part())
        (damaged / "result.json").write_text("{")
        assert "result.json is damaged" in text_of(server.current_part())
        write_lines(run.path / "metrics.jsonl", [{"kind": "train", "step": 110, "loss": 3.5}])
        assert "euler interrupted 110 of" in text_of(server.current_part())


def test_n_gram_models_appear_when_a_run_is_finished(tmp_path: Path) -> None:
    run = RunFolder(make_run(tmp_path / "finished"))
    running_run(tmp_path / "running")
    assert "appear for comparison when the first of these runs is finished" in text_of(watch_part([tmp_path]))
    bigram = {"order": 2, "perplexity": 100.0, "bits_per_byte": 2.0, "train_tokens": 9}
    run.write_json("result.json", {**run.result, "baselines": [bigram]})
    part = watch_part([tmp_path])
    assert "bigram model 100.00 2.0000 1.000" in text_of(part)
    curves = re.findall('data-name="([^"]*)" data-x="[^"]*" data-y="([^"]*)"', part)
    assert ("bigram model", "100 100") in curves
    looks = re.findall('data-name="([^"]*)".*?--colour-([0-9])', part)
    assert len({look for name, look in looks}) == 3, "a colour for each"


def test_charts_show_the_runs_that_are_running_or_newest(tmp_path: Path) -> None:
    for seed in range(10):
        make_run(tmp_path / f"seed-{seed}", seed=seed, started=f"2026-11-{10 + seed}")
    part = watch_part([tmp_path])
    assert part.count("<tr><th") == 10 + 1
    assert set(re.findall('data-name="([^"]*)"', part)) == {f"seed-{seed}" for seed in range(2, 10)}
    assert "8 runs that are running or were started last; 2 more are in the table" in text_of(part)


def test_a_run_is_listed_once_and_hostile_names_are_escaped(tmp_path: Path) -> None:
    make_run(tmp_path / "run", name=HOSTILE)
    make_run(tmp_path / "other", name="other")
    part = watch_part([tmp_path, tmp_path / "run"])
    assert part.count("<tr><th") == 2 + 1
    assert "<script>" not in part
    assert "<script>" not in watch_page([tmp_path]).split("</style>", 1)[1].split("<main>")[1].split("</main>")[0]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "no folder given"),
        (["nowhere"], "nowhere: no such folder"),
        (["empty"], "empty: contains no run"),
    ],
)
def test_mistakes_are_reported_in_one_line(
    arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["watch", *arguments])
    assert capsys.readouterr().err.startswith(f"coupledqk: {says}")


def test_the_command_prints_its_address_and_a_busy_port_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "run")

    def interrupt(server: WatchServer) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(WatchServer, "serve_forever", interrupt)
    Watch((tmp_path,), port=0).run()
    assert "http://127.0.0.1:" in capsys.readouterr().out
    with WatchServer([tmp_path], port=0) as server, pytest.raises(SystemExit):
        main(["watch", str(tmp_path), "--port", str(server.server_port)])
    assert f"port {server.server_port} of 127.0.0.1 is in use" in capsys.readouterr().err


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    yield from running_browser(tmp_path_factory.mktemp("profile"))


@contextlib.contextmanager
def watched(folder: Path) -> Iterator[WatchServer]:
    with WatchServer([folder], port=0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


STEP = "document.querySelector('td.step')?.textContent"


def test_the_page_is_updated_while_a_run_is_trained(tmp_path: Path, browser: Browser) -> None:
    run = running_run(tmp_path / "mine")
    with run.lock(), watched(tmp_path) as server:
        browser.open(server.url)
        assert browser.evaluate(STEP).startswith("100 of")
        with (run.path / "metrics.jsonl").open("a") as log:
            log.write(json.dumps({"kind": "train", "step": 110, "loss": 3.5}) + "\n")
        browser.wait_for(f"{STEP}.startsWith('110 of')")
        browser.point_at(".plot svg", across=0.9)
        assert browser.evaluate("document.querySelector('.readout').innerText").split()[0] == "step"
        make_run(tmp_path / "other", "diff")
        browser.wait_for("document.querySelectorAll('table.results tbody tr').length === 2")
        assert browser.console() == []
        assert {url.removeprefix(server.url) for url in browser.requests()} == {"", "part"}
    browser.wait_for("document.querySelector('#connection').textContent.includes('does not respond')")
    assert browser.evaluate("document.querySelectorAll('table.results tbody tr').length") == 2, "the last values stay"


@pytest.mark.parametrize("width", [320, 390, 1400])
def test_the_page_fits_the_width_of_the_screen(width: int, tmp_path: Path, browser: Browser) -> None:
    running_run(tmp_path / "mine")
    make_run(tmp_path / "a-run-with-a-long-name-that-does-not-fit", "diff")
    with watched(tmp_path) as server:
        browser.open(server.url, width)
        browser.assert_fits(width, "h1, h2, h3, p, svg, .wide, li")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast(scheme: str, tmp_path: Path, browser: Browser) -> None:
    running_run(tmp_path / "mine")
    with watched(tmp_path) as server:
        browser.open(server.url, scheme=scheme)
        browser.assert_legible(scheme, "p, .note, td, th, figcaption, .chart text")
