"""docs/hugging_face.md: every line of its tables names a test that there is."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "hugging_face.md").read_text()
ROWS = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if line.startswith("| ")]


def test_every_line_is_tested():
    rows = [row for row in ROWS if row[0] not in ("what", "---")]
    assert len(rows) > 30
    for *_, shown in rows:
        path, name = re.fullmatch(r"`(tests/[\w/]+\.py)::(\w+)`", shown).groups()
        text = (ROOT / path).read_text()
        assert re.search(rf"^(def {name}\(|{name}\b)", text, re.MULTILINE), f"there is no {name} in {path}"
