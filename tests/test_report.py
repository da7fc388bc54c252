"""Charts stay inside their frame, and pages show the data of run folders and escape all text."""

import html
import itertools
import json
import math
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from coupledqk.config import RunConfig, identity
from coupledqk.errors import CoupledQKError
from coupledqk.recipes import recipe
from coupledqk.report.axis import Axis
from coupledqk.report.chart import Series, line_chart
from coupledqk.report.documents import write_document
from coupledqk.report.runs_page import Sample, write_page
from coupledqk.run_folder import RunFolder
from coupledqk.schema import to_toml
from coupledqk.variants import preset

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = """</script></title><script>alert("x")</script><img src=x onerror='alert(1)'>&amp;\x00\x1b[31m\ud800"""

numbers = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e299, max_value=1e299)
positive = st.floats(min_value=1e-299, max_value=1e299)
points = st.lists(st.tuples(positive, positive), min_size=1, max_size=30)


def elements(chart: str, kind: str, css: str = "") -> list[ElementTree.Element]:
    found = ElementTree.fromstring(chart).iter(SVG + kind)
    return [element for element in found if css in element.get("class", "").split() or not css]


def curve_pixels(chart: str) -> list[list[tuple[float, float]]]:
    """The pixels of each series' line."""
    lines = [group.findall(f"{SVG}path[@class='line']")[0] for group in elements(chart, "g", "series")]
    return [[tuple(map(float, xy.split())) for xy in re.split("[ML]", line.get("d", ""))[1:]] for line in lines]


# --- charts -----------------------------------------------------------------------------------------------------------------


def inside(chart: str) -> bool:
    """Whether labels lie within the view box, and curves within the axes."""
    _, _, width, height = map(float, ElementTree.fromstring(chart).get("viewBox", "").split())
    labels = [(float(text.get("x", 0)), float(text.get("y", 0))) for text in elements(chart, "text")]
    left, bottom, right = map(float, re.findall(r"[\d.]+", elements(chart, "path", "axis")[0].get("d", "")))
    pixels = [pixel for curve in curve_pixels(chart) for pixel in curve]
    return all(0 <= x <= width and 0 <= y <= height for x, y in labels) and all(
        left <= x <= right and 0 <= y <= bottom for x, y in pixels
    )


@given(st.lists(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=30), min_size=1, max_size=9))
def test_any_finite_data_is_drawn_inside_the_view_box(data: list[list[tuple[float, float]]]) -> None:
    chart = line_chart([Series(f"run {i}", series) for i, series in enumerate(data)], "step", "loss")
    assert inside(chart)
    assert [len(curve) for curve in curve_pixels(chart)] == [len(series) for series in data]


@given(points, st.booleans(), st.booleans())
def test_any_positive_data_is_drawn_inside_the_view_box_on_log_axes(data, log_x: bool, log_y: bool) -> None:
    band = [(y / 2, y * 2) for _, y in data]
    chart = line_chart([Series("run", data, band)], "step", "loss", log_x, log_y)
    assert inside(chart)
    assert len(elements(chart, "path", "band")) == 1


@given(st.lists(numbers, min_size=1), st.booleans())
def test_ticks_lie_on_their_axis_are_few_and_have_correct_labels(values: list[float], log: bool) -> None:
    axis = Axis.over([10 ** (value / 1e299 * 290) for value in values] if log else values, 0, 100, log)
    ticks = axis.ticks()
    assert 2 <= len(ticks) <= 9
    assert len({label for _, label in ticks}) == len(ticks)
    for tick, label in ticks:
        assert -1e-6 <= axis.at(tick) <= 100 + 1e-6
        assert float(label.replace(",", "").replace("−", "-")) == pytest.approx(tick, rel=1e-9)


@pytest.mark.parametrize(
    ("values", "log", "labels"),
    [
        ([0, 500], False, ["0", "100", "200", "300", "400", "500"]),
        ([3.9, 5.6], False, ["4.0", "4.5", "5.0", "5.5"]),
        ([3e-4, 1e-2], True, ["3e-4", "1e-3", "3e-3", "1e-2"]),
        ([60, 8000], True, ["100", "300", "1,000", "3,000"]),
        ([1, 1e9], True, ["1e0", "1e2", "1e4", "1e6", "1e8"]),
        ([7, 7], False, ["6.5", "7.0", "7.5"]),
        ([-4, 4], False, ["−4", "−2", "0", "2", "4"]),
    ],
)
def test_ticks_are_round_numbers(values: list[float], log: bool, labels: list[str]) -> None:
    assert [label for _, label in Axis.over(values, 0, 100, log).ticks()] == labels


@given(st.floats(1, 1e8), st.floats(1.05, 1e4), st.booleans())
@example(83_000, 11, True)
def test_labels_of_ticks_do_not_overlap(low: float, ratio: float, log: bool) -> None:
    chart = line_chart([Series("run", [(low, 1), (low * ratio, 2)])], "x", "y", log_x=log)
    *labels, _ = elements(chart, "text", "middle")
    places = [(float(label.get("x", "")), 4 * len(label.text or "")) for label in labels]  # half of 8 pixels per letter
    assert len(places) >= 2
    assert all(x + half <= other - other_half for (x, half), (other, other_half) in itertools.pairwise(places))


def test_a_larger_value_is_higher_and_a_later_one_further_right() -> None:
    chart = line_chart([Series("run", [(1, 10), (10, 100), (100, 1000)])], "step", "loss", log_x=True, log_y=True)
    [[(x0, y0), (x1, y1), (x2, y2)]] = curve_pixels(chart)
    assert x0 < x1 < x2
    assert y0 > y1 > y2
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2), "equal ratios are equal distances on a log axis"
    assert y0 - y1 == pytest.approx(y1 - y2, abs=0.2)


def test_points_that_are_not_finite_are_left_out() -> None:
    data = [(1, 2.0), (2, math.nan), (3, math.inf), (math.nan, 1.0), (4, 3.0), (-math.inf, 1.0)]
    assert curve_pixels(line_chart([Series("run", data)], "step", "loss")) == curve_pixels(
        line_chart([Series("run", [(1, 2.0), (4, 3.0)])], "step", "loss")
    )
    [curve] = curve_pixels(
        line_chart([Series("run", [(0, 1), (1, 0), (1, 1), (2, -3)])], "x", "y", log_x=True, log_y=True)
    )
    assert len(curve) == 1


def test_a_single_point_is_a_marker_in_the_plot() -> None:
    chart = line_chart([Series("run", [(5, 7)])], "step", "loss")
    [[(x, y)]] = curve_pixels(chart)
    assert f"M{x} {y}m" in [mark.get("d", "")[: len(f"M{x} {y}m")] for mark in elements(chart, "path", "marks")]


def test_series_differ_in_colour_dash_and_marker() -> None:
    chart = line_chart([Series(f"run {i}", [(0, i), (1, i)]) for i in range(5)], "step", "loss")
    groups = [group.findall(f"{SVG}path") for group in elements(chart, "g", "series")]
    assert len({line.get("style") for line, _ in groups}) == 5
    assert len({line.get("stroke-dasharray") for line, _ in groups}) == 5
    assert len({re.sub(r"M[\d.]+ [\d.]+", "", marks.get("d", "")) for _, marks in groups}) == 5


def test_the_title_and_the_series_names_of_a_chart_are_escaped() -> None:
    names = ["standard", HOSTILE, "a name that is far too long to fit into the legend of a chart"]
    chart = line_chart([Series(name, [(0, 1), (1, 2)]) for name in names], HOSTILE, HOSTILE, title=HOSTILE)
    root = ElementTree.fromstring(chart)  # well-formed, so markup in names was escaped
    assert root.get("role") == "img"
    assert "<script>alert" in (root.findtext(f"{SVG}title") or "")
    assert not [element for element in root.iter() if element.tag in (SVG + "script", SVG + "img")]
    legend = ["".join(text.itertext()) for text in elements(chart, "text")]
    assert "standard" in legend
    assert any(text.startswith("a name that is far") and text.endswith("…") for text in legend)
    assert [group.get("data-name") for group in elements(chart, "g", "series")][2] == names[2]


@pytest.mark.parametrize(
    ("series", "says"),
    [
        ([], "at least one series"),
        ([Series("euler", [])], "'euler' has no point that can be drawn"),
        ([Series("a", [(1, 1)]), Series("euler", [(1, math.nan)])], "'euler' has no point that can be drawn"),
        ([Series("euler", [(1, 1), (2, 2)], band=[(0, 2)])], "2 points, but its band has 1"),
    ],
)
def test_a_chart_without_data_is_refused(series: list[Series], says: str) -> None:
    with pytest.raises(CoupledQKError, match=says):
        line_chart(series, "step", "loss")


# --- pages ------------------------------------------------------------------------------------------------------------------


def make_run(
    path: Path, variant: str = "standard", seed: int = 0, finished: bool = True, final_loss: float = 4.0, **info: Any
) -> Path:
    """A run folder of 300 synthetic steps; the best validation is at step 200, and the last has `final_loss`."""
    config = RunConfig(model=preset("nano", variant), seed=seed)
    run = RunFolder(path)
    run.create(config)
    corpus = {"name": "python-stdlib", "hash": "c0ffee" * 8, "bytes": {"valid": 590_213}, "tokenizer": "bpe:2048"}
    versions = {"coupledqk": "0.1.0", "torch": "2.13.0"}
    described = {"name": path.name, "variant": variant, "identity": identity(config), "parameters": 1_086_592}
    origin = {
        "corpus": corpus,
        "commit": "5b1a333",
        "versions": versions,
        "machine": "2 cores",
        "started": "2026-11-15",
    }
    run.write_json("info.json", {**described, **origin, **info})
    valid = [valid_record(step, loss) for step, loss in ((100, 5.0), (200, final_loss - 0.1), (300, final_loss))]
    heads = {"dt": [[0.1, 0.25], [0.125, 0.0625]]} if variant in ("euler", "hamiltonian") else {}
    train = [{"kind": "train", "step": step, "loss": 4 + 30 / step} for step in range(10, 301, 10)]
    write_lines(path / "metrics.jsonl", [*train, *({**record, **heads} for record in valid)])
    write_lines(path / "timing.jsonl", [{"step": 10, "tokens_per_second": s} for s in (12_000.0, 12_345.0, None)])
    if finished:
        result = {"best": valid[1], "final": valid[2], "tokens_per_second": 25_012.3}
        run.write_json("result.json", {**result, "definition": "exp of the mean loss per bpe:2048 token"})
    return path


def test_an_unfinished_run_is_labelled_with_the_measure_of_its_task(tmp_path: Path) -> None:
    run = RunFolder(make_run(tmp_path / "run", finished=False))
    (run.path / "config.toml").write_text(to_toml(recipe("mqar-mini")))
    record = {"kind": "valid", "step": 100, "loss": 1.5, "accuracy": 0.25}
    write_lines(run.path / "metrics.jsonl", [{"kind": "train", "step": 10, "loss": 2.0}, record])
    text = text_of(page_of([run.path], tmp_path))
    assert "Accuracy : share of correct answers, at the lowest validation loss." in text
    assert "loss, nats per answer" in text
    assert "exp of the mean loss" not in text


def valid_record(step: int, loss: float) -> dict[str, Any]:
    return {"kind": "valid", "step": step, "loss": loss, "perplexity": math.exp(loss), "bits_per_byte": loss / 2.5}


def write_lines(path: Path, records: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def page_of(runs: list[Path], out: Path, **arguments: Any) -> str:
    write_page(runs, out / "report.html", "Three variants", **arguments)
    return (out / "report.html").read_text("utf-8")


def text_of(page: str) -> str:
    """The visible text of a page, without style and script."""
    body = re.sub(r"<(style|script|desc)>.*?</\1>", "", page, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", body)).split())


@pytest.fixture
def demo(tmp_path: Path) -> list[Path]:
    return [make_run(tmp_path / name, name) for name in ("standard", "euler", "diff")]


def test_the_table_shows_the_results_of_each_run(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / "a", "standard"),
        make_run(tmp_path / "b", "euler", final_loss=3.5, parameters=1_094_800),
    ]
    text = text_of(page_of(runs, tmp_path))
    best, final = math.exp(3.9), math.exp(4)
    assert f"standard {best:.2f} {final:.2f} {3.9 / 2.5:.4f} 1,086,592 25,012" in text
    assert f"euler {math.exp(3.4):.2f} {math.exp(3.5):.2f} {3.4 / 2.5:.4f} 1,094,800 25,012" in text
    assert "Perplexity : exp of the mean loss per bpe:2048 token." in text


def test_curves_show_the_logged_values(tmp_path: Path, demo: list[Path]) -> None:
    charts = re.findall("<svg.*?</svg>", page_of(demo, tmp_path), re.DOTALL)
    train, valid = ([group.attrib for group in elements(chart, "g", "series")] for chart in charts)
    assert [curve["data-name"] for curve in train] == ["standard", "euler", "diff"]
    assert train[0]["data-x"] == " ".join(str(step) for step in range(10, 301, 10))
    assert float(train[0]["data-y"].split()[0]) == 7
    assert valid[2]["data-x"] == "100 200 300"
    assert float(valid[2]["data-y"].split()[0]) == pytest.approx(math.exp(5))


def test_a_long_training_curve_is_averaged_with_a_note(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    train = [{"kind": "train", "step": step, "loss": float(step % 2)} for step in range(1, 1001)]
    write_lines(run / "metrics.jsonl", [*train, valid_record(1000, 4.0)])
    page = page_of([run], tmp_path)
    curve = elements(re.findall("<svg.*?</svg>", page, re.DOTALL)[0], "g", "series")[0]
    assert len(curve.get("data-x", "").split()) == 77
    assert all(0.4 < float(y) < 0.6 for y in curve.get("data-y", "").split())
    assert "mean of up to 13 logged steps" in text_of(page)


def test_the_page_shows_step_sizes_of_coupled_runs_only(tmp_path: Path, demo: list[Path]) -> None:
    text = text_of(page_of(demo, tmp_path))
    assert (
        "euler: step size dt, initially 0.1, after 300 steps head 0 1 layer 0 0.100 0.250 layer 1 0.125 0.062" in text
    )
    assert text.count("step size dt") == 1


def test_the_page_shows_how_the_runs_differ_and_their_origin(tmp_path: Path, demo: list[Path]) -> None:
    text = text_of(page_of(demo, tmp_path)).replace(". ", ".")
    differences = text.partition("different settings")[2].partition("Settings that the runs share")[0]
    assert "model.attention.dynamics.method none euler none" in differences
    assert "model.attention.scoring.kind softmax softmax differential" in differences
    assert "d_model" not in differences
    origin = text.rpartition("Origin")[2]
    for known in ("commit 5b1a333", "versions.torch 2.13.0", "machine 2 cores", "corpus.hash " + "c0ffee" * 8):
        assert known in origin


def test_the_page_warns_if_a_variant_has_a_single_seed(tmp_path: Path) -> None:
    claim = "One seed does not support a claim: differences of this size may be noise"
    runs = [make_run(tmp_path / f"{v}-{seed}", v, seed) for v in ("standard", "euler") for seed in (0, 1)]
    assert claim in text_of(page_of([runs[0], runs[2]], tmp_path))
    assert claim in text_of(page_of(runs[:3], tmp_path)), "euler has one seed"
    assert claim not in text_of(page_of(runs, tmp_path))


def test_runs_of_one_variant_are_labelled_by_run_name(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / f"euler-s{seed}", "euler", seed) for seed in (0, 1)]
    assert "euler-s0" in text_of(page_of(runs, tmp_path)).partition("Learning curves")[0]
    twins = [make_run(tmp_path / folder / "euler", "euler", seed) for seed, folder in enumerate("ab")]
    assert str(twins[1]) in text_of(page_of(twins, tmp_path)).partition("Learning curves")[0]


def test_the_page_warns_that_perplexities_of_different_texts_cannot_be_compared(
    tmp_path: Path, demo: list[Path]
) -> None:
    warning = "perplexities cannot be compared"
    assert warning not in text_of(page_of(demo, tmp_path))
    other = make_run(
        tmp_path / "other", "hamiltonian", corpus={"name": "wikitext-2", "hash": "beef", "tokenizer": "gpt2"}
    )
    assert warning in text_of(page_of([*demo, other], tmp_path))


def test_a_run_in_progress_is_shown_up_to_its_last_step(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", finished=False)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "step": 310, "lo')
    text = text_of(page_of([run], tmp_path))
    assert f"standard † {math.exp(3.9):.2f} {math.exp(4):.2f}" in text
    assert "12,345" in text, "the newest measured speed"
    assert "† not finished" in text
    assert "Perplexity : exp of the mean loss per token of the validation text, at the best validation." in text


def test_a_run_before_its_first_validation_has_only_a_training_curve(tmp_path: Path, demo: list[Path]) -> None:
    write_lines(demo[0] / "metrics.jsonl", [{"kind": "train", "step": 10, "loss": 7.0}])
    (demo[0] / "result.json").unlink()
    page = page_of(demo, tmp_path)
    assert "standard † – – – 1,086,592 12,345" in text_of(page)
    train, valid = (elements(chart, "g", "series") for chart in re.findall("<svg.*?</svg>", page, re.DOTALL))
    assert [curve.get("data-name") for curve in train] == ["standard", "euler", "diff"]
    assert [curve.get("data-name") for curve in valid] == ["euler", "diff"]
    looks = [[curve[0].get("style") for curve in curves] for curves in (train, valid)]
    assert looks[0][1:] == looks[1], "a run looks the same in both charts"


def test_a_loss_that_is_not_finite_is_neither_drawn_nor_best(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    records = [
        valid_record(100, math.nan),
        valid_record(200, 3.0),
        {**valid_record(300, 800.0 - 100), "perplexity": math.inf},
    ]
    write_lines(run / "metrics.jsonl", [{"kind": "train", "step": 10, "loss": math.nan}, *records])
    page = page_of([run], tmp_path)
    assert f"standard {math.exp(3):.2f} not finite" in text_of(page)
    [valid] = re.findall("<svg.*?</svg>", page, re.DOTALL)
    assert [len(curve) for curve in curve_pixels(valid)] == [1]


def test_hostile_text_is_escaped(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", "euler")
    folder = RunFolder(run)
    folder.write_json("info.json", {**folder.info, "name": HOSTILE, "variant": HOSTILE, HOSTILE: {HOSTILE: HOSTILE}})
    write_page([run], tmp_path / "report.html", HOSTILE, [HOSTILE], [Sample(HOSTILE, HOSTILE, HOSTILE)])
    page = (tmp_path / "report.html").read_text("utf-8")
    assert len(re.findall("<script", page)) == 1, "the page's own"
    assert "<img" not in page
    assert "\x00" not in page
    assert text_of(page).count("""<script>alert("x")</script><img src=x onerror='alert(1)'>&amp;""") >= 7


def test_samples_are_grouped_by_prompt(tmp_path: Path, demo: list[Path]) -> None:
    samples = [(run, prompt, f"{run}'s") for run in ("standard", "euler") for prompt in ("def f(", "import ")]
    text = text_of(page_of(demo, tmp_path, samples=samples))
    assert "standard def f( standard's euler def f( euler's standard import standard's euler import euler's" in text


def test_the_page_needs_no_external_resources(tmp_path: Path, demo: list[Path]) -> None:
    page = page_of(demo, tmp_path, samples=[("euler", "import ", "os")])
    addresses = set(re.findall(r"""[a-z]+:?//[^\s"'<]+""", page))
    assert addresses <= {"http://www.w3.org/2000/svg"}
    assert not re.search(r"""\b(src|href|url|@import)\s*[=(]""", page)
    assert "default-src 'none'" in page


def test_the_same_runs_give_a_byte_identical_page(tmp_path: Path, demo: list[Path]) -> None:
    assert page_of(demo, tmp_path) == page_of(demo, tmp_path)


def test_a_report_without_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CoupledQKError, match="no runs given"):
        write_page([], tmp_path / "report.html", "Nothing")


@pytest.mark.parametrize(
    ("missing", "says"),
    [
        ("config.toml", "it has no config.toml"),
        ("info.json", "it has no info.json"),
        ("metrics.jsonl", "has no metrics yet"),
    ],
)
def test_the_error_for_an_incomplete_run_folder_says_what_is_missing(missing: str, says: str, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (run / missing).unlink()
    with pytest.raises(CoupledQKError, match=f"{re.escape(str(run))}.*{says}"):
        write_page([run], tmp_path / "report.html", "Page")
    assert not (tmp_path / "report.html").exists()


def test_a_run_with_empty_metrics_and_a_missing_folder_are_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (run / "metrics.jsonl").write_text("")
    with pytest.raises(CoupledQKError, match="has no metrics yet"):
        write_page([run], tmp_path / "report.html", "Page")
    with pytest.raises(CoupledQKError, match="no such run folder"):
        write_page([tmp_path / "nowhere"], tmp_path / "report.html", "Page")


def test_a_report_on_a_folder_leaves_out_the_runs_that_have_logged_nothing(tmp_path: Path) -> None:
    logged, claimed, begun = (make_run(tmp_path / "runs" / name) for name in ("logged", "claimed", "begun"))
    (claimed / "info.json").unlink()
    (begun / "metrics.jsonl").unlink()
    page = tmp_path / "report.html"
    assert write_document([tmp_path / "runs"], page) == [
        str(page),
        "left out, since they have no metrics yet: 2 of 3 runs",
    ]
    assert write_document([logged], tmp_path / "alone.html") == [str(tmp_path / "alone.html")]
    assert page.read_text() == (tmp_path / "alone.html").read_text()
    with pytest.raises(CoupledQKError, match="begun has no metrics yet"):
        write_document([logged, begun], page)
    (logged / "metrics.jsonl").unlink()
    with pytest.raises(CoupledQKError, match="runs: no run has metrics yet"):
        write_document([tmp_path / "runs"], page)
