"""What `eval` says of the weights it scored."""

import os
import shutil
import subprocess
import sys

import pytest

from cosformer.cli import main
from cosformer.training import recipes, train

SIZES = {"train_rows": 32, "valid_rows": 8, "test_rows": 8}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("scored") / "run"
    run = recipes.build(
        "mqar", scale="tiny", steps=4, eval_every=4, save_every=2, save_total_limit=9, warmup=0, batch_size=8,
        device="cpu", task_settings=SIZES, model={"hidden_size": 16},
    )  # fmt: skip
    train(run, made, progress=False, results=made / "results.jsonl")
    return made


def said(capsys, *words):
    assert main(["eval", *map(str, words)]) == 0
    return capsys.readouterr().out.splitlines()


def test_the_split_and_the_step_are_said(folder, capsys):
    first, score, *_ = said(capsys, folder)
    assert first == f"test split, step 4, {folder / 'checkpoint-4'}"
    assert score.startswith("accuracy ")
    assert said(capsys, folder, "--split", "valid")[0].startswith("valid split, step 4,")


def test_a_checkpoint_is_scored(folder, capsys):
    assert said(capsys, folder / "checkpoint-2")[0] == f"test split, step 2, {folder / 'checkpoint-2'}"


def test_a_run_that_is_unfinished_is_called_so(folder, capsys, tmp_path):
    left_out = shutil.ignore_patterns("record.json", "checkpoint-4")
    copy = shutil.copytree(folder, tmp_path / "run", ignore=left_out)
    first = said(capsys, copy)[0]
    assert first == f"test split, step 2 of an unfinished run (4 steps), {copy / 'checkpoint-2'}"


def test_help_names_the_split_that_is_the_default(capsys):
    with pytest.raises(SystemExit):
        main(["eval", "--help"])
    assert "test (default)" in " ".join(capsys.readouterr().out.split())


OWN = '''
from dataclasses import dataclass

from cosformer.attention import register as attention
from cosformer.attention.relu import Relu
from cosformer.tasks.registry import register
from cosformer.tasks.synthetic.mqar import Mqar
from cosformer.training.recipes import Table


@register("mine")
@dataclass(frozen=True)
class Mine(Mqar):
    """A task of this file."""


@attention("halved")
class Halved(Relu):
    """An attention of this file."""

    def query_features(self, q):
        return q.relu() / 2


SMALL = {"task_settings": {"train_rows": 32, "valid_rows": 8, "test_rows": 8}, "model": {"hidden_size": 16}}
SMALL |= {"steps": 4, "eval_every": 4, "warmup": 0, "batch_size": 8, "learning_rate": 1e-3}
build = Table("mine", SMALL, {}, {}, {}).build
'''


def test_a_recipe_file_brings_its_task_and_attention(tmp_path):
    """To commands that read the folder later, and twice in one process."""
    recipe, made = tmp_path / "my_recipe.py", tmp_path / "made"
    recipe.write_text(OWN)
    results = ["--results", str(tmp_path / "results.jsonl")]
    compare = ["compare", str(recipe), "--attentions", "halved,relu", "--folder", str(made), *results]
    environment = dict(os.environ, COLUMNS="200")
    score = ["eval", str(made / "halved")]

    def run(*commands):
        program = f"from cosformer.cli import main\nprint([main(words) for words in {commands!r}])"
        return subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, env=environment
        )

    done = run(compare)
    assert done.stdout.endswith("[0]\n"), done.stderr
    alone = run(score)
    assert alone.stdout == "[2]\n"
    assert "What a recipe file of yours brings is known with --recipe FILE.py." in alone.stderr
    twice = run(*[[*score, "--recipe", str(recipe)]] * 2)
    assert twice.stdout.count("accuracy ") == 2, twice.stderr
    assert twice.stdout.endswith("[0, 0]\n")


def test_a_recipe_file_that_fails_is_named_with_its_line(folder, tmp_path, capsys):
    recipe = tmp_path / "broken.py"
    recipe.write_text("x = 1\n1 / 0\n")
    assert main(["eval", str(folder), "--recipe", str(recipe)]) == 2
    assert "broken.py failed in line 2: ZeroDivisionError" in capsys.readouterr().err
