"""Text from a run over pieces of words, as training leaves it: the run's folder, or a checkpoint."""

import shutil

import pytest
from transformers import AutoTokenizer

from cosformer.cli import main
from cosformer.tasks import build
from cosformer.training import recipes, train
from tests.tasks import tiny


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a run, and its task's tokens of a text."""
    folder = tmp_path_factory.mktemp("pieces")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COSFORMER_CACHE", str(folder / "cache"))
        patch.setenv("COSFORMER_DATA", str(folder / "data"))
        tiny.wikitext("wikitext-2")
        run = recipes.build(
            "wikitext2", scale="tiny", steps=2, warmup=0, batch_size=2, eval_every=1, save_total_limit=9,
            save_every=1, device="cpu", task_settings={"bpe_size": 300}, model={"hidden_size": 16},
        )  # fmt: skip
        train(run, folder / "run", progress=False, results=folder / "results.jsonl")
        task = build(run.task, **run.task_settings)
        return folder / "run", next(task._bpe.encode([" green stop"]))


@pytest.mark.parametrize("given", ["", "checkpoint-1"], ids=["run", "checkpoint"])
def test_a_run_over_pieces_is_continued(trained, given, capsys):
    folder, _ = trained
    assert main(["generate", str(folder / given), "--prompt", " green", "--tokens", "5", "--greedy"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith(" green")
    assert len(said.out.strip()) > len("green")


def test_the_tokens_are_those_of_the_task(trained):
    folder, wanted = trained
    kept = AutoTokenizer.from_pretrained(folder / "checkpoint-2")
    assert kept(" green stop", add_special_tokens=False)["input_ids"] == wanted


def test_a_damaged_checkpoint_is_named(trained, tmp_path, capsys):
    copy = shutil.copytree(trained[0] / "checkpoint-1", tmp_path / "checkpoint-1")
    (copy / "model.safetensors").write_bytes(b"")
    assert main(["generate", str(copy), "--prompt", "a"]) == 2
    assert "checkpoint-1 is damaged: model.safetensors has 0 bytes" in capsys.readouterr().err
