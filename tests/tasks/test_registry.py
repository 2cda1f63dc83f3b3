"""The registry: what is known, how it is built, and what it says to a mistake."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from cosformer import tasks


def test_unknown_names_and_settings_say_what_was_meant():
    with pytest.raises(
        ValueError, match=r"task must be one of .*mqar.*, but got 'mqr'. Did you mean 'mqar'\?"
    ):
        tasks.build("mqr")
    with pytest.raises(
        ValueError, match=r"'mqar' has no parameter 'lenght'; it takes .*Did you mean 'length'\?"
    ):
        tasks.build("mqar", lenght=3)


@pytest.mark.parametrize("seed", [-1, 2**32, 1.5, "3", True])
@pytest.mark.parametrize("name", [n for n in tasks.names() if "seed" in tasks.parameters(n)])
def test_a_seed_is_refused_before_anything_is_made(name, seed):
    with pytest.raises(ValueError, match=r"^seed must be a whole number from 0 to 4,294,967,295, but got"):
        tasks.build(name, seed=seed)


@pytest.mark.parametrize("name", tasks.names())
def test_a_task_is_a_frozen_dataclass_that_explains_itself(name):
    cls = tasks.get(name)
    assert cls.name == name
    assert cls.title
    assert "Provenance:" in cls.__doc__
    assert all(p.default is not p.empty for p in tasks.parameters(name).values()), (
        "every setting has a default"
    )
    task = tasks.build(name)
    assert task == tasks.build(name)
    with pytest.raises(dataclasses.FrozenInstanceError):
        task.title = "another"


def test_the_package_offers_every_task():
    classes = {tasks.get(name).__name__ for name in tasks.names()}
    assert classes <= set(tasks.__all__)
    assert all(getattr(tasks, name).__doc__ for name in classes | {"Task", "Metric", "DataError", "fetch"})


def test_the_documentation_has_every_task():
    table = (Path(__file__).parents[2] / "docs" / "tasks.md").read_text(encoding="utf-8")
    first = [line.split("|")[1] for line in table.splitlines() if line.startswith("| ")]
    listed = {name.strip() for cell in first for name in cell.split(",")}
    assert set(tasks.names()) <= listed


def test_importing_tasks_needs_no_transformers():
    program = "import sys, cosformer.tasks; print(*{m.partition('.')[0] for m in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120
    )
    assert not {"transformers", "tokenizers", "datasets", "matplotlib", "PIL"} & set(done.stdout.split())
