"""Compiled layers: each kind once, without a break, for the whole of a run, and with the same results."""

import shutil

import pytest
import torch
from safetensors import safe_open
from torch._dynamo.utils import counters

from cosformer import reading
from cosformer.training import best, checkpoint, train
from tests.training.toy import recall, toy

COMPILED = {"compile": True, "compile_backend": "aot_eager"}
STILL = {"workers": 0, "steps": 4, "eval_every": 2, "eval_batch_size": 4}
GATE = {"qk_norm": True, "output_norm": True, "output_gate": "silu"}
WINDOWS = {"attention_parameters": {"windows": [2, 8]}}
MIXED = {"attention": ["cosformer", "softmax", "cosformer"]}
# A way to make runs, changes of the run and of the model, and kinds of layers.
MODELS = {
    "softmax, rotary": (recall, {"attention": "softmax"}, {"position": "rotary"}, 1),
    "windows, gate, norms": (recall, {}, WINDOWS | GATE, 1),
    "convolution": (recall, {}, {"conv_size": 3, "position": "rotary"}, 1),
    "mixed": (recall, MIXED, {"position": "rotary", **GATE}, 2),
    "windows of each layer": (
        recall, {"attention": ["cosformer"] * 3},
        {"attention_parameters": [{"windows": [2, 2 + i]} for i in range(3)]}, 3,
    ),
    "checkpointed": (recall, {"gradient_checkpointing": True}, {}, 1),
    "classification, masks": (toy, {}, {"position": "learned"} | WINDOWS, 1),
    "classification, softmax, masks": (toy, {"attention": "softmax"}, {"pre_norm": False}, 1),
}  # fmt: skip
DEAR = ("convolution", "windows of each layer", "classification, softmax, masks")


@pytest.fixture(autouse=True)
def _counted():
    counters.clear()


def trained(folder, run):
    return train(run, folder, progress=False, results=folder / "results.jsonl")


def losses(folder):
    lines = reading.json_lines(folder / "log.jsonl")
    return torch.tensor([[line["loss"], line["grad_norm"]] for line in lines if "event" not in line])


def graphs():
    assert not counters["graph_break"]
    return counters["stats"]["unique_graphs"]


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.thorough) if n in DEAR else n for n in MODELS]
)
def test_each_kind_of_layer_is_compiled_once(tmp_path, name):
    """In a run with two parts of an update, evaluations between, and short batches at their end."""
    make, changes, model, kinds = MODELS[name]
    settings = {**STILL, **changes, "model": {"dropout": 0.0, "num_hidden_layers": 3, **model}}
    trained(tmp_path / "eager", make(**settings))
    assert graphs() == 0
    trained(tmp_path / "compiled", make(**settings, **COMPILED))
    assert graphs() == kinds
    torch.testing.assert_close(
        losses(tmp_path / "compiled"), losses(tmp_path / "eager"), rtol=1e-4, atol=1e-5
    )
    names = []
    for folder in ("eager", "compiled"):
        with safe_open(best(tmp_path / folder) / "model.safetensors", framework="pt") as file:
            names.append(sorted(file.keys()))
    assert names[0] == names[1]


def test_another_run_of_the_process_makes_no_size_dynamic(tmp_path, monkeypatch):
    compiler, dynamic = torch.compile, []

    def looked(graph, inputs):
        dynamic.append(any(isinstance(size, torch.SymInt) for x in inputs for size in x.shape))
        return graph.forward

    monkeypatch.setattr(torch, "compile", lambda function, **options: compiler(function, backend=looked))
    for length in (16, 20):
        run = recall(**STILL | {"steps": 1}, **COMPILED)
        trained(tmp_path / str(length), run.replace(task_settings={**run.task_settings, "length": length}))
    assert dynamic == [False, False]


def test_texts_of_any_length_need_two_graphs(tmp_path):
    """Where the loader pads every batch to its own longest text."""
    trained(
        tmp_path, toy(**STILL | {"steps": 8, "model": {"num_hidden_layers": 2}}, data="loader", **COMPILED)
    )
    assert graphs() == 2


@pytest.mark.parametrize(
    ("attention", "model"), [("cosformer", WINDOWS | GATE), ("softmax", {"position": "rotary"})],
    ids=["windows", "softmax"],
)  # fmt: skip
def test_texts_of_similar_lengths(tmp_path, attention, model):
    """Also where a length is as large as another size by chance (16). The operator on a CPU computes short
    texts another way: cosFormer has a graph for them."""
    settings = {**STILL, "steps": 12, "group_by_length": True, "attention": attention, "batch_size": 2}
    settings["model"] = {"dropout": 0.0, "num_hidden_layers": 2, **model}
    trained(tmp_path / "eager", toy(**settings))
    trained(tmp_path / "compiled", toy(**settings, **COMPILED))
    assert graphs() == (2 if attention == "cosformer" else 1)
    torch.testing.assert_close(
        losses(tmp_path / "compiled"), losses(tmp_path / "eager"), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(
    "backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.thorough)]
)  # fmt: skip
def test_resumed_it_ends_the_same_to_the_bit(tmp_path, backend):
    run = recall(workers=0, model={"num_hidden_layers": 2}, compile=True, compile_backend=backend)
    trained(tmp_path / "whole", run.replace(save_total_limit=9))
    unwanted = shutil.ignore_patterns("record.json", "results.jsonl", "checkpoint-8", "checkpoint-12")
    shutil.copytree(tmp_path / "whole", tmp_path / "resumed", ignore=unwanted)
    assert checkpoint.newest(tmp_path / "resumed").name in ("checkpoint-4", "checkpoint-6")
    trained(tmp_path / "resumed", run)
    assert torch.equal(losses(tmp_path / "resumed"), losses(tmp_path / "whole"))
    for name in ("model.safetensors", "optimizer.safetensors", "random-0.safetensors"):
        one, two = (tmp_path / folder / checkpoint.name(12) / name for folder in ("resumed", "whole"))
        assert one.read_bytes() == two.read_bytes()
