"""Reports say what the records say, and nothing a record holds can act on the page."""

import importlib.util
import io
import json
import re
import xml.etree.ElementTree as ET
from base64 import b64decode
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from PIL import Image

from cosformer import record_format
from cosformer.report import plotter, records, render
from cosformer.report.document import (
    Code,
    Document,
    Figure,
    Items,
    Line,
    Plot,
    Sample,
    Samples,
    Section,
    Table,
    Text,
)
from cosformer.report.sections import benchmarks as benchmark_sections
from cosformer.report.sections import runs as results
from cosformer.report.sections.common import latest
from cosformer.report.write import report, write, write_beside
from cosformer.training import Run

ROOT = Path(__file__).parents[2]
EVIL = '<script>alert(1)</script>" onload="x'


def run_record(mechanism, seed, accuracy, **more):
    metric = {"name": "accuracy", "higher_is_better": True, "test": {"accuracy": accuracy}}
    return {"task": "text", "mechanism": mechanism, "scale": "small", "seed": seed, "metric": metric, **more}


def plot(*lines, **how):
    return Plot("p", "A plot", "x", "y", [Line(f"line {i}", points, i) for i, points in enumerate(lines)],
                "What to see.", **how)  # fmt: skip


@pytest.fixture(scope="module")
def page():
    return render.html(report(ROOT / "results", ROOT / "benchmarks/reports"))


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
        assert f"From `{latest(kept, kind)['stem']}.json`" in words
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
    run = Run(task="text", steps=1, batch_size=1, learning_rate=1.0)
    other = {"device": "cpu", "data": "loader", "shard": True}.get(name, 7)
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
    assert latest(kept, "cosformer operator benchmark")["date"] == "2026-03"
    assert latest(kept, "cosformer speed of light") is None


def test_a_campaign_says_what_it_found():
    wrong = {"number": 16, "end": "lost", "what": "kill at 7"}
    part = {"cases": 500, "ends": {"identical": 499, "lost": 1}, "kinds": {"kill": 1999, "clock": 1},
            "again": [{**wrong, "now": "identical"}], "wrong": [wrong], "date": "2026-11-17T03:00",
            "commit": {"id": "abcdef0123456789"}}  # fmt: skip
    record = {"format": "cosformer campaign 2", "date": "2026", "stem": "campaign", "parts": {"faults": part}}
    (section,) = benchmark_sections([record])
    table, items, _ = section.blocks
    assert table.rows == [
        ["runs with faults, against the run that nothing happened to", "500", "499 identical, 1 lost", "1",
         "2026-11-17", "abcdef0123"]
    ]  # fmt: skip
    assert items.words[0].endswith("1,999 kill, 1 clock")
    assert items.words[1] == "faults 16, lost: kill at 7"
    assert items.words[2] == "faults 16, lost at first, run again: identical (kill at 7)"


def test_an_empty_project_has_a_report(tmp_path):
    page, _ = write(report(tmp_path / "none", tmp_path / "none"), tmp_path)
    assert "No run has finished" in page.read_text()


class Seen(HTMLParser):
    """The tags and attributes that a browser would find."""

    def __init__(self):
        super().__init__()
        self.tags, self.attributes = set(), []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes += attrs


def test_what_a_record_holds_stays_words():
    found = [
        run_record(name, 0, 0.5, tokens_per_s=9.0, hardware={"cpu": EVIL}) | {"task": EVIL}
        for name in (EVIL, "x")
    ]
    words = [Text(f"`{EVIL}` [x](javascript:alert(1))"), Samples([Sample(EVIL, EVIL, EVIL)], EVIL)]
    document = Document(EVIL, EVIL, [*results.sections(found), Section(EVIL, words)], EVIL)
    page = render.html(document)
    seen = Seen()
    seen.feed(page)
    assert "script" not in seen.tags
    assert not [name for name, _ in seen.attributes if name.startswith("on")]
    assert not [value for name, value in seen.attributes if name.endswith("href") and "javascript" in value]
    assert page.count("alert(1)") >= 5, "as words"
    for drawn in document.plots:
        ET.fromstring(plotter.standalone(drawn))


def test_pages_ask_for_nothing(page):
    fetched = re.findall(r'(?:src|href)="([^"]+)"', re.sub(r"<a [^>]*>", "", page))
    assert all(address.startswith("data:") or f'id="{address[1:]}"' in page for address in fetched)
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
    tree = ET.fromstring(plotter.svg(drawn))
    width, height = map(float, tree.attrib["viewBox"].split()[2:])
    placed = [e for e in tree.iter() if e.tag.endswith(("}text", "}use"))]
    for element in placed:
        assert 0 <= float(element.attrib["x"]) <= width, element.attrib
        assert 0 <= float(element.attrib["y"]) <= height, element.attrib
    assert len([e for e in placed if e.tag.endswith("}use")]) >= sum(len(line.points) for line in drawn.lines)
    words = [e.text for e in placed if e.tag.endswith("}text")]
    assert {"x", "y", *(line.name for line in drawn.lines)} <= set(words)
    ticks = [word for word in words if re.match(r"[\d.,]+(K| [µnm]?s| [KMG]?i?B)?$", word)]
    assert 4 <= len(ticks) <= 14, "of both axes"


def points(drawn):
    """What each point says, and where it lies."""
    found = {}
    for group in ET.fromstring(plotter.svg(drawn)).iter():
        if group.attrib.get("class") == "point":
            (use,) = (e for e in group.iter() if e.tag.endswith("}use"))
            title = next(e.text for e in group.iter() if e.tag.endswith("}title"))
            found[title] = float(use.attrib["x"]), float(use.attrib["y"])
    return found


def test_points_say_what_they_are_and_lie_where_they_belong():
    logarithmic = {"log_x": True, "log_y": True, "x_unit": "tokens", "y_unit": "seconds"}
    found = points(plot([(1024, 0.01), (2048, 0.1), (4096, 1.0)], **logarithmic))
    assert list(found) == ["line 0, 1K: 10 ms", "line 0, 2K: 100 ms", "line 0, 4K: 1 s"]
    (x0, y0), (x1, y1), (x2, y2) = found.values()
    assert x1 - x0 == pytest.approx(x2 - x1)
    assert x1 > x0
    assert y0 - y1 == pytest.approx(y1 - y2)
    assert y0 > y1, "upwards is more"
    (_, y0), (_, y1), (_, y2) = points(plot([(1, 1.0), (2, 2.0), (3, 4.0)])).values()
    assert y1 - y2 == pytest.approx(2 * (y0 - y1)), "straight where nothing else is said"


def test_ticks_are_apart():
    """Also where a log scale is so narrow that it holds no power, or so wide that it holds many."""
    for low, high in ((3.1, 3.2), (1e-5, 80.0), (2.0, 3.0)):
        tree = ET.fromstring(plotter.svg(plot([(1, low), (2, high)], log_y=True)))
        left = min(float(e.attrib["x"]) for e in tree.iter() if e.tag.endswith("}use"))
        ticks = sorted(
            float(e.attrib["y"])
            for e in tree.iter()
            if e.tag.endswith("}text") and re.match(r"[\d.e-]+$", e.text) and float(e.attrib["x"]) < left
        )
        assert 2 <= len(ticks) <= 7, (low, high)
        assert all(b - a > 15 for a, b in pairwise(ticks)), (low, high)


def test_colours_follow_the_page():
    """No colour of the palette is written out: a dark page has its own."""
    drawn = plot(*[[(1, i + 1.0), (9, i + 2.0)] for i in range(8)])
    assert not re.search(r"#[0-9a-f]{6}", plotter.svg(drawn))
    assert {f"var(--c{i})" for i in range(8)} <= set(re.findall(r"var\(--\w+\)", plotter.svg(drawn)))
    assert plotter.svg(drawn) == plotter.svg(drawn), "the same record gives the same bytes"


def test_plots_of_a_page_do_not_share_names(page):
    names = re.findall(r'\bid="([^"]+)"', page)
    assert len(set(names)) == len(names)


def test_a_plot_without_points_is_refused():
    with pytest.raises(ValueError, match="has no points"):
        plotter.svg(plot([]))


@pytest.mark.parametrize(
    ("value", "unit", "says"),
    [(65536, "tokens", "64K"), (1000, "tokens", "1,000"), (1.78e-3, "seconds", "1.78 ms"),
     (2e-5, "seconds", "20 µs"), (1e-7, "seconds", "100 ns"),
     (532480, "bytes", "520 KiB"), (2.5, "number", "2.5")],
)  # fmt: skip
def test_figures_are_written_in_their_unit(value, unit, says):
    assert plotter.written(value, unit) == says


def test_maps_are_pictures():
    address = plotter.picture([[0.0, 0.5], [1.0, 2.0], [-1.0, 0.25]], 0)
    with Image.open(io.BytesIO(b64decode(address.partition(",")[2]))) as image:
        assert (image.size, image.mode) == ((2, 3), "RGBA")
        pixels = [image.getpixel((x, y)) for y in range(3) for x in range(2)]
    assert {p[:3] for p in pixels} == {(0xD5, 0x5E, 0x00)}
    assert [p[3] for p in pixels] == pytest.approx([0, 128, 255, 255, 0, 64], abs=1)


def test_a_figure_is_one_picture_and_its_plots_on_a_page(tmp_path):
    figure = Figure("Two", [plot([(1, 1.0)]), plot([(1, 2.0)])], "Heading", columns=2)
    document = Document("T", "L", opening=[figure])
    written = write_beside(document, tmp_path / "record.json")
    assert [p.name for p in written] == ["record.md", "record.png"]
    assert written[0].read_text() == "# T\n\nL\n\n![Two](record.png)\n"
    with Image.open(written[1]) as image:
        assert image.width > 2 * image.height
    assert render.html(document).count('class="plot"') == 2


def test_tables_are_written_where_nothing_can_be_drawn(tmp_path, monkeypatch, capsys):
    """On a machine that only measures, matplotlib may be missing."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    table, drawn = Table(["a"], [["x"]]), plot([(1, 1.0)])
    page, text = write(Document("T", "L", [Section("S", [table, drawn])]), tmp_path)
    assert "| x |" in text.read_text()
    assert "svg" not in page.read_text()
    assert "matplotlib is not installed" in capsys.readouterr().err
    assert not (tmp_path / "plots").exists()


def test_blocks_say_the_same_in_both_forms():
    blocks = [Text("said"), Code("do --it"), Items(["one", "two"]), Samples([Sample("n", "p", "t```")], "C.")]
    document = Document("T", "", [Section("S", blocks)])
    text = render.markdown(document)
    assert "said\n\n```\ndo --it\n```\n\n- one\n- two\n\nC.\n\nn:\n\n~~~~~~\npt```\n~~~~~~\n" in text
    page = render.html(document)
    for shown in ("<p>said</p>", "<pre>do --it</pre>", "<li>one</li><li>two</li>", "<b>p</b>t```</pre>"):
        assert shown in page


def test_markdown_tables_hold_their_cells():
    table = Table(["a", "b"], [["x | y", "1\n2"]], "Said.")
    text = render.markdown(Document("T", "L", [Section("S", [table])]), "plots")
    assert "| x \\| y | 1 2 |" in text
    assert text.endswith("Said.\n")


def test_other_json_is_no_benchmark(tmp_path):
    (tmp_path / "x.json").write_text(json.dumps({"hello": 1}))
    assert records.benchmarks(tmp_path) == []
