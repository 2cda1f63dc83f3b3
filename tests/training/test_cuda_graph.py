"""Forward and backward as a CUDA graph: the same weights as without, a sentence where there can be none."""

import pytest
import torch
from safetensors.torch import load_file

from cosformer.training import best, train
from cosformer.training import cuda_graph as graphs
from tests.training.toy import recall, toy

on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")
GATE = {"qk_norm": True, "output_norm": True, "output_gate": "silu"}
WINDOWS = {"attention_parameters": {"windows": [2, 8]}}
KEPT = {"workers": 0}  # samples stay on the device; those of `toy` come from a loader
STEPS = {"steps": 12, "eval_every": 5, "save_every": 5}
# A way to make runs, and changes of the run and of the model.
MODELS = {
    "softmax, rotary": (recall, {"attention": "softmax", **KEPT}, {"position": "rotary"}),
    "windows, gate, norms": (recall, KEPT, WINDOWS | GATE),
    "plain, in parts": (recall, {"accumulation": 2}, {}),
    "mixed, convolution": (recall, {"attention": ["cosformer", "softmax"]}, {"conv_size": 3, **GATE}),
    "bfloat16": (recall, {"precision": "bf16", **KEPT}, WINDOWS | GATE),
    "compiled": (recall, {"compile": True}, WINDOWS | GATE),
    "random features": (recall, {"attention": "performer"}, {}),
    "masks": (toy, {}, WINDOWS),
    "masks, of many shapes": (toy, {"batch_size": 2}, {}),
    "masks, of similar lengths": (toy, {"group_by_length": True, **KEPT}, WINDOWS),
    "masks, dropout": (toy, {}, {"dropout": 0.2, **WINDOWS}),
}


def weights(folder, run):
    train(run, folder, progress=False, results=folder / "results.jsonl")
    return load_file(best(folder) / "model.safetensors")


def assert_same(a, b):
    assert a.keys() == b.keys()
    assert [name for name in a if not torch.equal(a[name], b[name])] == []


@on_a_gpu
@pytest.mark.parametrize("name", MODELS)
def test_the_same_weights_as_without(tmp_path, name, monkeypatch):
    make, changes, model = MODELS[name]
    monkeypatch.setattr(graphs, "MAX_GRAPHS", 2)
    torch.use_deterministic_algorithms(False)  # they are not for all that training needs, nor asked for there
    run = make(**STEPS, device="cuda", **changes, model={"dropout": 0.0, "num_hidden_layers": 2, **model})
    plain = weights(tmp_path / "plain", run)
    assert_same(weights(tmp_path / "graph", run.replace(cuda_graph=True)), plain)


@on_a_gpu
def test_resumed(tmp_path):
    torch.use_deterministic_algorithms(False)
    run = recall(**STEPS, device="cuda", cuda_graph=True, model={"dropout": 0.2, **WINDOWS})
    whole = weights(tmp_path / "whole", run)

    class Enough(Exception):
        pass

    def leave(event):
        if event["step"] == 7:
            raise Enough

    with pytest.raises(Enough):
        train(run.replace(log_every=1), tmp_path / "cut", progress=leave, results=tmp_path / "results.jsonl")
    assert_same(weights(tmp_path / "cut", run), whole)


def test_without_a_gpu(tmp_path):
    with pytest.raises(RuntimeError, match="cuda_graph was asked for, but this run is on the CPU"):
        train(toy(device="cpu", cuda_graph=True), tmp_path, progress=False)


@pytest.mark.parametrize("field", ["gradient_checkpointing", "shard", "sequence_parallel"])
def test_what_cannot_be_captured(field):
    with pytest.raises(ValueError, match="cuda_graph must be false with"):
        toy(cuda_graph=True, **{field: 2 if field == "sequence_parallel" else True})
