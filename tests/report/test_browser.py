"""The pages in a real browser: nothing complains, plots are there, links work, a phone can show them."""

import re
from pathlib import Path

import pytest

from cosformer.report.sections import demo as demo_page
from cosformer.report.write import report, write
from tests.report import browser
from tests.report.demo_record import RECORD

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(
    browser.CHROMIUM is None, reason="no Chromium is installed (apt install chromium)"
)


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    return {
        "report": write(report(ROOT / "results", ROOT / "benchmarks/reports"), folder, "report")[0],
        "demo": write(demo_page.document(RECORD), folder, "demo")[0],
    }


def brightness(colour):
    return sum(int(x) for x in re.findall(r"\d+", colour)[:3]) / 3


@pytest.mark.parametrize("name", ["report", "demo"])
@pytest.mark.parametrize(("width", "dark"), [(1200, False), (390, True)], ids=["desk", "phone, dark"])
def test_pages_stand(name, width, dark, pages, tmp_path):
    found = browser.seen(pages[name], tmp_path, width, *([browser.DARK] if dark else []))
    assert found["scroll"] <= width, "the page is wider than the window"
    assert len(found["plots"]) >= 5
    least = 250 if width < 500 else 350
    assert all(w >= least and h > 0.6 * w for w, h in found["plots"])
    assert all(length > 20 for length in found["paths"])
    assert found["letters"] >= 9, "letters too small to read"
    assert len(found["images"]) == (4 if name == "demo" else 0)
    assert all(found["images"])
    assert not found["lost"]
    assert found["links"]
    paper, ink = brightness(found["paper"]), brightness(found["ink"])
    assert (ink - paper if dark else paper - ink) > 150, (found["paper"], found["ink"])


@pytest.mark.parametrize("name", ["report", "demo"])
def test_the_console_is_silent(name, pages):
    assert browser.complaints(pages[name]) == []


def test_the_console_would_complain(tmp_path):
    page = tmp_path / "bad.html"
    page.write_text('<script>throw new Error("broken")</script><img src="missing.png">')
    assert any("broken" in said for said in browser.complaints(page))


@pytest.mark.parametrize("name", ["report", "demo"])
def test_links_to_files_lead_somewhere(name, pages):
    for address in re.findall(r'<a href="([^"#]+)"', pages[name].read_text()):
        assert address.startswith("https://") or (pages[name].parent / address).is_file()
