"""What README.md shows runs as it stands, and the commands it names exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
TEXT = README.read_text() if README.is_file() else ""
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(language):
    """(line of the first statement, code) of each fenced block."""
    return [
        (TEXT.count("\n", 0, m.start()) + 2, m.group(2))
        for m in FENCE.finditer(TEXT)
        if m.group(1) == language
    ]


def test_readme_shows_code():
    assert README.is_file(), f"{README} is missing"
    assert blocks("python"), f"{README} has no ```python block: a user learns by example"


@pytest.mark.parametrize(("line", "code"), [pytest.param(*b, id=f"line-{b[0]}") for b in blocks("python")])
def test_python_block_runs(line, code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile("\n" * (line - 1) + code, str(README), "exec"), {"__name__": "readme"})


def test_make_targets_exist():
    assert README.is_file(), f"{README} is missing"
    code = " ".join(m.group(2) for m in FENCE.finditer(TEXT)) + " ".join(
        re.findall(r"`([^`\n]+)`", FENCE.sub("", TEXT))
    )
    named = set(re.findall(r"\bmake ([a-z][\w-]*)", code))
    targets = set(re.findall(r"^([a-z][\w-]*):(?!=)", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert named >= {"test", "demo"}, "README.md names make test and make demo"
    assert named <= targets, f"README.md names targets the Makefile lacks: {sorted(named - targets)}"
