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
NOTES = sorted((ROOT / "docs" / "development").glob("*.md"))
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(path):
    """(line of the first statement, code) of each fenced block of Python."""
    text = path.read_text()
    return [(text.count("\n", 0, m.start()) + 2, m[2]) for m in FENCE.finditer(text) if m[1] == "python"]


EXAMPLES = [
    pytest.param(path, line, code, id=f"{path.stem}-{line}")
    for path in PAGES
    if path.stem
    != "training"  # whole runs, of which two blocks have tests below; the others: tests/training/
    for line, code in blocks(path)
    if "from openai import" not in code  # asks a server: tests/serving/test_server.py has one
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


def training_block(first):
    """The block of docs/training.md with this text, which stands on its own."""
    (found,) = (code for _, code in blocks(ROOT / "docs" / "training.md") if first in code)
    return found


def test_a_model_is_trained_on_a_text_of_ones_own(tmp_path, monkeypatch):
    """As docs/training.md says, smaller; what it writes is loaded and generates."""
    from transformers import AutoTokenizer

    from cosformer.cli import main
    from cosformer.models import CosformerForCausalLM

    code = training_block("my.txt")
    for shown, smaller in (
        ("max_steps=1000", "max_steps=2"),
        ("warmup_steps=100", "warmup_steps=1"),
        ("per_device_train_batch_size=16", "per_device_train_batch_size=2"),
        ("hidden_size=256", "hidden_size=32"),
        ("intermediate_size=896", "intermediate_size=64"),
        ("512", "64"),
    ):
        assert shown in code
        code = code.replace(shown, smaller)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.txt").write_text("To be, or not to be, that is the question. " * 20)
    exec(compile(code, "docs/training.md", "exec"), {"__name__": "example"})
    assert CosformerForCausalLM.from_pretrained("mine").config.num_hidden_layers == 6
    assert AutoTokenizer.from_pretrained("mine")("a")["input_ids"] == [97]
    assert main(["generate", "mine", "--prompt", "To be", "--tokens", "2", "--device", "cpu"]) == 0


def test_a_recipe_file_of_ones_own_is_a_run(tmp_path):
    """The file that docs/training.md shows, at each scale; and without what it says is required."""
    from cosformer.training import model, recipes

    code = training_block("# my_recipe.py")
    (tmp_path / "my_recipe.py").write_text(code)
    for scale in ("tiny", "small", "paper"):
        run = recipes.build(tmp_path / "my_recipe.py", scale=scale, attention="softmax", seed=3)
        assert (run.task, run.scale, run.attention, run.seed) == ("copy", scale, "softmax", 3)
    model.initial(recipes.build(tmp_path / "my_recipe.py", scale="tiny"))
    for setting in ('"learning_rate": 1e-3,', '"batch_size": 32,', ', "steps": 100'):
        assert setting in code
        (tmp_path / "without.py").write_text(code.replace(setting, ""))
        with pytest.raises(ValueError, match=setting.split('"')[1]):
            recipes.build(tmp_path / "without.py", scale="tiny")


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


@pytest.mark.parametrize("path", [*PAGES, *NOTES], ids=lambda p: p.stem)
def test_links_lead_somewhere(path):
    for address in re.findall(r"\]\(([^)#\s]+)[^)]*\)", FENCE.sub("", path.read_text())):
        if not address.startswith("https://"):
            assert (path.parent / address).exists(), address


def test_every_page_is_in_the_contents():
    contents = (ROOT / "mkdocs.yml").read_text()
    named = [p.relative_to(ROOT / "docs").as_posix() for p in (ROOT / "docs").rglob("*.md")]
    assert [name for name in named if f" {name}\n" not in contents] == []


def drawn(picture, least=11):
    """What a drawing says: its title, and of each line and point what it is (of long lines the points are not
    said). Where they lie depends on the version of matplotlib."""
    said = re.findall(r"<title>(.*?)</title>", picture)
    assert len(said) >= least
    return said


def test_figure_and_tables_are_those_of_the_newest_records():
    made = runpy.run_path(str(ROOT / "docs" / "render_readme.py"))
    assert drawn(made["FIGURE"].read_text()) == drawn(made["figure"]()), "run python docs/render_readme.py"
    text = made["README"].read_text()
    assert text == made["readme"](text), "run python docs/render_readme.py"
    for name in made["PARTS"]:
        assert all(text.count(made[mark].format(name)) == 1 for mark in ("BEGIN", "END")), name


def test_the_tables_of_runs_are_those_of_the_records():
    made = runpy.run_path(str(ROOT / "docs" / "render_results.py"))
    text = made["PAGE"].read_text()
    assert text == made["page"](text), "run python docs/render_results.py"
    assert "| associative recall |" in text
    for name, drawing in made["figures"]().items():
        kept = (ROOT / "docs" / "figures" / name).read_text()
        assert drawn(drawing, 3) == drawn(kept, 3), "run python docs/render_results.py"
    assert text.count("| windows, all bounded |") == 1


def test_the_page_about_scaling_is_that_of_its_record():
    made = runpy.run_path(str(ROOT / "docs" / "render_scaling.py"))
    text = made["PAGE"].read_text()
    assert text == made["page"](text), "run python docs/render_scaling.py"
    assert "| 100 million |" in text
    assert drawn(made["FIGURE"].read_text()) == drawn(made["figure"]()), "run python docs/render_scaling.py"


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


def test_every_promise_names_tests_that_exist():
    """SECURITY.md has a row for each promise; what holds it is a file of tests, or one of them by name."""
    promised = (ROOT / "SECURITY.md").read_text().partition("## What is promised")[2].partition("\n## ")[0]
    rows = [line for line in promised.splitlines() if line.startswith("| ")][2:]
    assert len(rows) >= 15
    for row in rows:
        named = re.findall(r"`(tests/[^`]+)`", row)
        assert named, row
        for name in named:
            file, _, function = name.partition("::")
            text = (ROOT / file).read_text()
            assert re.search(rf"^def {function or 'test_'}", text, re.MULTILINE), name


def test_the_readers_that_security_names_are_attacked():
    from benchmarks.hostile_files import READERS

    assert set(READERS) >= {
        "model",
        "cache",
        "run",
        "data",
        "data cache",
        "records",
        "recipe",
        "texts",
        "sealed run",
    }


def test_the_files_that_contributing_names_are_there():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    named = {name for name in re.findall(r"[\w<>/.]+\.py\b", text) if "<name>" not in name}
    assert len(named) > 60
    there = [f"/{p.relative_to(ROOT)}" for part in ("src", "tests", "benchmarks", "docs") for p in
             (ROOT / part).rglob("*.py")]  # fmt: skip
    for name in named:
        for backend in ("ops/triton", "ops/hopper"):
            path = name.replace("<backend>", backend)
            assert any(other.endswith(f"/{path}") for other in there), path
