"""What `eval` says of the weights it scored."""

import shutil

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
