"""Sizes that cannot fit this machine are refused before anything is allocated, with the figure."""

import json
import resource
import time

import pytest
import torch

from cosformer import memory, tasks
from cosformer.cli import main
from cosformer.models import CosformerConfig, CosformerForCausalLM, loading
from cosformer.training import Run, model


def test_the_limit_is_the_smallest_there_is(monkeypatch):
    assert 0 < memory.limit() <= memory.physical()
    monkeypatch.setattr(memory, "physical", lambda: 1000)
    assert memory.limit() <= 1000
    monkeypatch.setattr(memory, "physical", lambda: 0)
    monkeypatch.setattr(memory, "_of_the_group", lambda: 700)
    assert memory.limit() == 700
    monkeypatch.setattr(memory, "_of_the_group", lambda: 0)
    monkeypatch.setattr(resource, "getrlimit", lambda which: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert memory.limit() == 0
    memory.refuse_beyond(10**30, "it")  # nobody knows: nothing is refused


HUGE = {
    "width": {"hidden_size": 2**20},
    "vocabulary": {"vocab_size": 2**31 - 1, "hidden_size": 4096},
    "feed-forward": {"intermediate_size": 2**31 - 1, "hidden_size": 4096},
    "positions": {
        "position": "learned",
        "max_position_embeddings": 2**31 - 1,
        "horizon": None,
        "hidden_size": 4096,
    },
}
IMPOSSIBLE = {
    "layers": {"num_hidden_layers": 10**9},
    "decoder": {"num_decoder_layers": 10**9},
    "more than an int": {"vocab_size": 10**30},
    "heads": {"num_attention_heads": 10**9, "hidden_size": 10**9},
}


@pytest.mark.parametrize("name", HUGE)
def test_a_configuration_that_does_not_fit(name, tmp_path):
    CosformerForCausalLM(CosformerConfig(hidden_size=16, num_hidden_layers=1)).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"intermediate_size": None} | HUGE[name]))
    began = time.perf_counter()
    for load in (CosformerForCausalLM.from_pretrained, lambda f: loading.load_model(CosformerForCausalLM, f)):
        with pytest.raises(ValueError, match=r"(takes .* (GiB|TiB)|do not fit)"):
            load(tmp_path)
    assert time.perf_counter() - began < 5


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_a_size_that_no_model_has(name):
    began = time.perf_counter()
    with pytest.raises(ValueError, match="must be at most"):
        CosformerConfig(**IMPOSSIBLE[name])
    assert time.perf_counter() - began < 1


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"seed": 2**32}, "seed must be at most 4,294,967,295"),
        ({"seed": 10**400}, "seed must be at most"),
        ({"seed": "zero"}, "seed must be"),
        ({"seed": 0.5}, "seed must be"),
        ({"workers": 10**6}, "workers must be at most"),
        ({"workers": None}, "workers must be"),
        ({"steps": 10**30}, "steps must be at most"),
        ({"batch_size": 10**12}, "batch_size must be at most"),
        ({"warmup": 10**30}, "warmup must be at most"),
        ({"weight_decay": "much"}, "weight_decay must be"),
        ({"beta1": "x"}, "beta1 must be"),
        ({"task_settings": [1]}, "task_settings must be"),
        ({"model": None}, "model must be"),
        ({"initial": 7}, "initial must be"),
        ({"attention": 7}, "attention must be"),
        ({"task": 7}, "task must be"),
    ],
)
def test_a_run_with_absurd_settings(changes, says):
    with pytest.raises((ValueError, TypeError), match=says):
        Run(**{"task": "mqar", "steps": 1, "batch_size": 1, "learning_rate": 1e-3} | changes)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["model.hidden_size=4194304"], "takes"),
        (["model.num_hidden_layers=1000000000"], "at most"),
        (["batch_size=1000000000"], "takes"),
        (["eval_batch=1000000000"], "takes"),
        (["task_settings.train_rows=1000000000000"], "train_rows"),
        (["task_settings.length=100000000000"], "takes"),
        (["seed=99999999999999999999999"], "seed"),
        (["workers=100000"], "workers"),
    ],
)
def test_a_command_line_that_does_not_fit(words, says, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    began = time.perf_counter()
    assert main(["train", "mqar", "--scale", "tiny", *words]) == 2
    said = capsys.readouterr().err
    assert says in said.lower()
    assert len(said.strip().splitlines()) == 1, said
    assert time.perf_counter() - began < 10


@pytest.mark.parametrize(
    ("shard", "size", "local", "models"),
    [(False, 1, 1, 4), (False, 2, 2, 8), (True, 2, 2, 4), (True, 8, 2, 2), (False, 8, 2, 8)],
    ids=["alone", "replicas", "shards", "shards on machines", "replicas on machines"],
)
def test_processes_of_a_machine_that_do_not_fit_together(monkeypatch, shard, size, local, models):
    """Weights, gradients and two moments: of all processes here, or their shards of them; each process builds
    the whole model first."""
    task = tasks.build("mqar", length=32, pairs=2)
    sizes = {"hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 2}
    run = Run("mqar", steps=1, batch_size=8, learning_rate=1e-3, model=sizes, shard=shard, eval_batch_size=1)
    monkeypatch.setenv("WORLD_SIZE", str(size))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(local))
    one = memory.of_model(model.build(run, task))
    monkeypatch.setattr(memory, "limit", lambda: models * one)
    model.refuse_what_does_not_fit(run, task)
    monkeypatch.setattr(memory, "limit", lambda: models * one - 1)
    with pytest.raises(ValueError, match="training this model takes"):
        model.refuse_what_does_not_fit(run, task)


def test_rows_that_do_not_fit():
    for name in ("mqar", "copy", "reverse", "listops", "pathfinder"):
        with pytest.raises(ValueError, match=r"train_rows=1e\+14 .*takes"):
            tasks.build(name, train_rows=10**14).dataset("train")


def test_memory_that_runs_out_is_a_sentence(monkeypatch, capsys):
    from cosformer.cli import info

    said = "DefaultCPUAllocator: not enough memory: you tried to allocate"
    for error in (MemoryError(), RuntimeError(said), torch.OutOfMemoryError("CUDA out of memory.")):

        def fail(args, error=error):
            raise error

        monkeypatch.setattr(info, "run", fail)
        assert main(["info"]) == 2
        said = capsys.readouterr().err
        assert "memory" in said
        assert len(said.splitlines()) == 1


@pytest.mark.parametrize(
    "option", [["--tokens", "9" * 30], ["--seed", "9" * 30], ["--seed", "9" * 5000], ["--seed", "-1"]]
)
def test_absurd_options(option, capsys, tmp_path):
    with pytest.raises(SystemExit) as left:
        main(["generate", str(tmp_path), *option])
    assert left.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
