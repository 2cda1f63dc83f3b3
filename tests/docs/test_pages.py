"""What README.md and the documentation show runs as it stands, and what they name exists."""

import re
import runpy
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# The worked example of adding an attention is two files of the project: test_attentions.py runs it.
PAGES = [
    ROOT / "README.md",
    *sorted(p for p in (ROOT / "docs").glob("*.md") if p.stem != "adding_an_attention"),
]
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(path):
    """(line of the first statement, code) of each fenced block of Python."""
    text = path.read_text()
    return [(text.count("\n", 0, m.start()) + 2, m[2]) for m in FENCE.finditer(text) if m[1] == "python"]


EXAMPLES = [
    pytest.param(path, line, code, id=f"{path.stem}-{line}")
    for path in PAGES
    if path.stem != "training"  # blocks that build on one another, and a whole run: tests/training/ has those
    for line, code in blocks(path)
]


def code(path):
    """Everything that is set as code."""
    text = path.read_text()
    return "\n".join(m[2] for m in FENCE.finditer(text)) + "\n".join(
        re.findall(r"`([^`\n]+)`", FENCE.sub("", text))
    )


@pytest.mark.parametrize(("path", "line", "code"), EXAMPLES)
def test_python_block_runs(path, line, code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile("\n" * (line - 1) + code, str(path), "exec"), {"__name__": "example"})


def test_there_are_examples():
    shown = {path.stem for path in PAGES if blocks(path)}
    assert shown >= {"README", "index", "mathematics", "operator", "models", "drop_in", "performance"}


def test_make_targets_exist():
    named = {target for path in PAGES for target in re.findall(r"\bmake ([a-z][\w-]*)", code(path))}
    targets = set(re.findall(r"^([a-z][\w-]*):(?!=)", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert named >= {"test", "demo"}, "README.md names make test and make demo"
    assert named <= targets, f"the Makefile lacks {sorted(named - targets)}"


def test_commands_exist():
    from cosformer.cli.main import COMMANDS

    known = {*COMMANDS, "COMMAND"}
    named = {c for path in PAGES for c in re.findall(r"\bcosformer ([a-zA-Z]\w+)\b", code(path))}
    named -= {"import"}  # from cosformer import ...
    assert named <= known, sorted(named - known)


@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.stem)
def test_links_lead_somewhere(path):
    for address in re.findall(r"\]\(([^)#\s]+)[^)]*\)", FENCE.sub("", path.read_text())):
        if not address.startswith("https://"):
            assert (path.parent / address).exists(), address


def test_every_page_is_in_the_contents():
    contents = (ROOT / "mkdocs.yml").read_text()
    assert [p.name for p in (ROOT / "docs").glob("*.md") if f" {p.name}\n" not in contents] == []


def test_figure_and_table_are_those_of_the_newest_records():
    made = runpy.run_path(str(ROOT / "docs" / "render_readme.py"))
    assert made["FIGURE"].read_text() == made["figure"](), "run python docs/render_readme.py"
    text = made["README"].read_text()
    assert text == made["readme"](text), "run python docs/render_readme.py"
    assert text.count(made["BEGIN"]) == text.count(made["END"]) == 1


def test_the_tables_of_runs_are_those_of_the_records():
    made = runpy.run_path(str(ROOT / "docs" / "render_results.py"))
    text = made["PAGE"].read_text()
    assert text == made["page"](text), "run python docs/render_results.py"
    assert "| associative recall |" in text
    for name, drawing in made["figures"]().items():
        assert drawing == (ROOT / "docs" / "figures" / name).read_text(), "run python docs/render_results.py"
    assert text.count("| windows |") == 1


def test_the_command_is_installed_by_name():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"cosformer": "cosformer.cli:main"}


def test_nothing_unpickles():
    """As SECURITY.md says."""
    forbidden = re.compile(
        r"\btorch\.load\(|^\s*(?:import|from) pickle|\beval\((?!\))|\bexec\(", re.MULTILINE
    )
    for path in (ROOT / "src").rglob("*.py"):
        assert not forbidden.search(path.read_text()), path
