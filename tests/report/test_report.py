"""Reports say what the records say, and nothing a record holds can act on the page."""

import json
import math
import re
import struct
import xml.etree.ElementTree as ET
import zlib
from base64 import b64decode
from itertools import pairwise
from pathlib import Path

import pytest

from cosformer import record_format
from cosformer.report import benchmarks, html, markdown, png, records, results, scales, svg
from cosformer.report.document import Document, Line, Plot, Sample, Samples, Section, Table, Text
from cosformer.report.write import report, write
from cosformer.training import Run

ROOT = Path(__file__).parents[2]
EVIL = '<script>alert(1)</script>" onload="x'


def run_record(mechanism, seed, accuracy, **more):
    metric = {"name": "accuracy", "higher_is_better": True, "test": {"accuracy": accuracy}}
    return {"task": "text", "mechanism": mechanism, "scale": "small", "seed": seed, "metric": metric, **more}


def plot(*lines, **how):
    return Plot("p", "A plot", "x", "y", [Line(f"line {i}", points, i) for i, points in enumerate(lines)],
                "What to see.", **how)  # fmt: skip


def test_the_project_s_own_records(tmp_path):
    page, text = write(report(ROOT / "results", ROOT / "benchmarks/reports"), tmp_path)
    words = text.read_text()
    for record in records.runs(ROOT / "results"):
        if "experiment" in record:  # of a plan: a row of its tables
            assert f"| {record['experiment']['row']} |" in words
            continue
        tiny = record.get("scale") == results.SMALLEST
        assert (f"| {record['task']} |" if tiny else f"## {record['task']}\n") in words
    kept = records.benchmarks(ROOT / "benchmarks/reports")
    for kind in {r["format"].rpartition(" ")[0] for r in kept}:
        assert f"From `{benchmarks.latest(kept, kind)['stem']}.json`" in words
    linked = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", words)
    assert len(linked) >= 6
    for name in linked:
        ET.parse(tmp_path / name)
    assert page.stat().st_size > 10_000


def test_runs_are_averaged_over_seeds():
    found = [run_record("softmax", 0, 0.9), run_record("cosformer", 0, 0.8), run_record("cosformer", 1, 0.7)]
    (section,) = results.sections(found)
    table = next(b for b in section.blocks if isinstance(b, Table))
    assert [row[:3] for row in table.rows] == [["cosformer", "0.75 ± 0.05", "2"], ["softmax", "0.9", "1"]]


def test_runs_of_other_settings_are_not_averaged():
    """A sweep over widths: as many rows, named by what differs."""
    found = [
        run_record("cosformer", seed, accuracy)
        | {"settings": {"seed": seed, "model": {"hidden_size": width}}}
        for width, seed, accuracy in ((8, 0, 0.5), (8, 1, 0.7), (64, 0, 1.0))
    ]
    (section,) = results.sections(found)
    table = next(b for b in section.blocks if isinstance(b, Table))
    assert [row[:3] for row in table.rows] == [
        ["cosformer, hidden_size 8", "0.6 ± 0.1", "2"],
        ["cosformer, hidden_size 64", "1", "1"],
    ]


def test_settings_are_told_apart_at_the_smallest_scale():
    """By what differs within a mechanism; what only sets the mechanisms apart makes no row."""
    found = [
        run_record(mechanism, seed, accuracy)
        | {"scale": "tiny", "settings": {"seed": seed, "steps": steps, "model": {"position": mechanism}}}
        for mechanism, steps, seed, accuracy in (
            ("cosformer", 30, 0, 0.5), ("cosformer", 30, 1, 0.7), ("cosformer", 40, 0, 0.9),
            ("softmax", 30, 0, 0.8),
        )
    ]  # fmt: skip
    (section,) = results.sections(found)
    (table,) = (b for b in section.blocks if isinstance(b, Table))
    assert [(row[0], *row[2:4]) for row in table.rows] == [
        ("text, steps 30", "0.6 ± 0.1", "0.8"),
        ("text, steps 40", "0.9", "-"),
    ]
    assert "behind ± half the distance" in table.caption


@pytest.mark.parametrize("scale", ["tiny", "small"])
def test_a_repetition_is_no_second_run(scale):
    """Of the same seed and settings the newest counts, wherever in the files it stands."""
    found = [
        run_record("cosformer", seed, accuracy, date=date, settings={"seed": seed, "device": device})
        | {"scale": scale}
        for seed, accuracy, date, device in (
            (0, 0.5, "2026-02", "cpu"), (0, 0.9, "2026-01", "auto"), (1, 0.7, "2026-01", "cpu"),
        )
    ]  # fmt: skip
    (section,) = results.sections(found)
    (table,) = (b for b in section.blocks if isinstance(b, Table))
    assert "0.6 ± 0.1" in table.rows[0]


@pytest.mark.parametrize("name", record_format.NON_SEMANTIC_FIELDS)
def test_what_does_not_change_a_run_does_not_part_its_records(name):
    """The fields are those of training itself: a run may change them when it is resumed."""
    found = [run_record("cosformer", seed, 0.5, settings={"seed": seed, name: f"{seed}"}) for seed in (0, 1)]
    (section,) = results.sections(found)
    table = next(b for b in section.blocks if isinstance(b, Table))
    assert [row[:3] for row in table.rows] == [["cosformer", "0.5 ± 0", "2"]]
    run = Run(task="text", steps=1, batch=1, learning_rate=1.0)
    other = "cpu" if name == "device" else "loader" if name == "data" else 7
    assert run.replace(**{name: other}).differences(run) == []


def test_scales_are_kept_apart():
    found = [run_record("cosformer", 0, 0.8), run_record("cosformer", 0, 0.4) | {"scale": "paper"}]
    (section,) = results.sections(found)
    tables = [b for b in section.blocks if isinstance(b, Table)]
    assert [t.rows[0][1] for t in tables] == ["0.4", "0.8"]


def test_the_smallest_scale_is_one_table():
    chance = {"chance": {"accuracy": 0.5}}
    tiny = [
        run_record(m, 0, x) | {"scale": "tiny"} | chance for m, x in (("softmax", 0.9), ("cosformer", 0.8))
    ]
    other = run_record("softmax", 0, 0.7) | {"scale": "tiny", "task": "image"}
    *_, section = results.sections([*tiny, other, run_record("cosformer", 0, 0.95)])
    (table,) = (b for b in section.blocks if isinstance(b, Table))
    assert table.header == ["task", "test", "cosformer", "softmax", "by counting"]
    assert table.rows == [
        ["image", "accuracy, higher is better", "-", "0.7", "-"],
        ["text", "accuracy, higher is better", "0.8", "0.9", "0.5"],
    ]


def test_scores_are_drawn_against_speed():
    found = [
        run_record("cosformer", 0, 0.8, tokens_per_s=100.0),
        run_record("cosformer", 1, 0.6, tokens_per_s=300.0),
        run_record("softmax", 0, 0.9, tokens_per_s=50.0),
    ]
    (section,) = results.sections(found)
    (drawn,) = (b for b in section.blocks if isinstance(b, Plot))
    assert {line.name: line.points for line in drawn.lines} == {
        "cosformer": [(200.0, pytest.approx(0.7))],
        "softmax": [(50.0, 0.9)],
    }


def test_the_newest_record_of_a_kind_counts():
    kept = [
        {"format": f"cosformer operator benchmark {v}", "date": d}
        for v, d in ((1, "2026-01"), (1, "2026-03"), (2, "2026-02"))
    ]
    kept.append({"format": "cosformer operator benchmark on a GPU 1", "date": "2027-01"})
    assert benchmarks.latest(kept, "cosformer operator benchmark")["date"] == "2026-03"
    assert benchmarks.latest(kept, "cosformer speed of light") is None


def test_an_empty_project_has_a_report(tmp_path):
    page, _ = write(report(tmp_path / "none", tmp_path / "none"), tmp_path)
    assert "No run has finished" in page.read_text()


def test_what_a_record_holds_stays_words():
    found = [
        run_record(name, 0, 0.5, tokens_per_s=9.0, hardware={"cpu": EVIL}) | {"task": EVIL}
        for name in (EVIL, "x")
    ]
    words = [Text(f"`{EVIL}` [x](javascript:alert(1))"), Samples([Sample(EVIL, EVIL, EVIL)], EVIL)]
    document = Document(EVIL, EVIL, [*results.sections(found), Section(EVIL, words)], EVIL)
    page = html.render(document)
    assert "<script" not in page
    assert 'onload="' not in page
    assert 'href="javascript' not in page
    for drawn in document.plots:
        ET.fromstring(svg.standalone(drawn))


def test_pages_ask_for_nothing():
    page = html.render(report(ROOT / "results", ROOT / "benchmarks/reports"))
    fetched = re.findall(r'(?:src|href)="([^"]+)"', re.sub(r"<a [^>]*>", "", page))
    assert all(address.startswith("data:") for address in fetched)
    assert "default-src 'none'" in page
    assert "@import" not in page
    assert "url(" not in page


@pytest.mark.parametrize(
    "drawn",
    [
        plot([(1, 5.0)]),
        plot([(1, 5.0), (2, 5.0)], log_y=True),
        plot([(1, 0.0), (2, 0.0)]),
        plot([(512, 1e-5), (65536, 70.0)], [(512, 3e-3)], log_x=True, log_y=True, x_unit="tokens",
             y_unit="seconds"),
        plot(*[[(1, i + 1.0), (9, i + 2.0)] for i in range(8)], y_unit="bytes", log_y=True),
    ],
    ids=["one point", "level", "zeros", "seven decades", "many lines"],
)  # fmt: skip
def test_every_plot_is_inside_its_picture(drawn):
    tree = ET.fromstring(svg.standalone(drawn))
    place = dict.fromkeys(("x", "cx", "x1", "x2"), svg.WIDTH) | dict.fromkeys(
        ("y", "cy", "y1", "y2"), svg.HEIGHT
    )
    seen = 0
    for element in tree.iter():
        for name, most in place.items():
            if name in element.attrib:
                seen += 1
                assert 0 <= float(element.attrib[name]) <= most, (element.tag, element.attrib)
    assert seen > 10
    ticks = [e.text for e in tree.iter() if e.attrib.get("class") == "muted"]
    assert len(ticks) >= 2


def test_a_plot_without_points_is_refused():
    with pytest.raises(ValueError, match="has no points"):
        svg.draw(plot([]))


@pytest.mark.parametrize(
    ("value", "unit", "says"),
    [(65536, "tokens", "64K"), (1000, "tokens", "1,000"), (1.78e-3, "seconds", "1.78 ms"),
     (2e-5, "seconds", "20 µs"), (532480, "bytes", "520 KiB"), (2.5, "number", "2.5")],
)  # fmt: skip
def test_figures_are_written_in_their_unit(value, unit, says):
    assert scales.written(value, unit) == says


@pytest.mark.parametrize(
    ("low", "high", "log"), [(0, 1, False), (3.1, 3.2, False), (1e-5, 80, True), (2, 3, True)]
)
def test_ticks_are_inside_and_apart(low, high, log):
    scale = scales.Scale(low, high, 0, 100, log)
    found = scales.ticks(scale, 6, "number")
    assert 2 <= len(found) <= 7
    assert all(low <= t <= high for t in found)
    places = [scale.at(t) for t in found]
    assert all(b - a > 5 for a, b in pairwise(places))


def test_maps_are_pictures():
    address = png.data_address([[0.0, 0.5], [1.0, 2.0], [-1.0, 0.25]], "#102030")
    data = b64decode(address.partition(",")[2])
    assert struct.unpack(">II", data[16:24]) == (2, 3)
    length = struct.unpack(">I", data[33:37])[0]
    rows = zlib.decompress(data[41 : 41 + length])
    assert rows[:9] == bytes([0, 0x10, 0x20, 0x30, 0, 0x10, 0x20, 0x30, 128])
    assert [rows[r * 9 + 4] for r in range(3)] == [0, 255, 0]
    assert [rows[r * 9 + 8] for r in range(3)] == [128, 255, 64]


def test_markdown_tables_hold_their_cells():
    table = Table(["a", "b"], [["x | y", "1\n2"]], "Said.")
    text = markdown.render(Document("T", "L", [Section("S", [table])]), "plots")
    assert "| x \\| y | 1 2 |" in text
    assert text.endswith("Said.\n")


def test_other_json_is_no_benchmark(tmp_path):
    (tmp_path / "x.json").write_text(json.dumps({"hello": 1}))
    assert records.benchmarks(tmp_path) == []


def test_log_scales_are_exact():
    scale = scales.Scale(1, 100, 0, 10, True)
    assert math.isclose(scale.at(10), 5)
