"""torch.export: lengths that stay free, caches that go in and come out, and transformers' own exporter."""

import pytest
import torch
from torch.utils import _pytree as pytree
from transformers.exporters import DynamoConfig, DynamoExporter

from cosformer import attention
from cosformer.attention import hidden_keys
from cosformer.models import CosformerCache, CosformerForCausalLM
from tests.models.tiny import build, close, gradients, having, tokens

COLUMNS = str(hidden_keys.SIZE)  # stands in a program that hides keys by columns


def test_a_length_stays_free():
    """Short texts are computed in another way than long ones, which is no part of the program."""
    net = build(CosformerForCausalLM, torch.float32, num_hidden_layers=1, max_position_embeddings=256)
    length = torch.export.Dim("length", min=2, max=200)
    program = torch.export.export(
        net,
        (tokens(2, 7),),
        {"use_cache": False},
        dynamic_shapes={"input_ids": {1: length}, "use_cache": None},
        strict=False,
    )
    made = program.module()
    for n in (3, 7, 150):
        ids = tokens(2, n)
        close(made(ids, use_cache=False).logits, net(ids).logits, 1e-5)
        expected = gradients(net, net(ids).logits.square().sum())
        found = gradients(made, made(ids, use_cache=False).logits.square().sum())
        close(found["model.embed_tokens.weight"], expected["model.embed_tokens.weight"], 1e-3)


@torch.no_grad()
@pytest.mark.parametrize("strict", [False, True])
def test_a_length_stays_free_beside_padding(monkeypatch, strict):
    """Also where columns hide the padding, for which long enough texts are chosen by their length."""
    monkeypatch.setattr(hidden_keys, "can_flash", lambda *x: True)  # as on a GPU
    config = {"attention": "softmax", "num_hidden_layers": 1, "max_position_embeddings": 256}
    net = build(CosformerForCausalLM, torch.float32, **config)
    length = {1: torch.export.Dim("length", min=2, max=200)}
    program = torch.export.export(
        net, (tokens(2, 7), torch.ones(2, 7, dtype=torch.int64)), {"use_cache": False},
        dynamic_shapes={"input_ids": length, "attention_mask": length, "use_cache": None}, strict=strict,
    )  # fmt: skip
    assert COLUMNS in program.graph_module.code
    for n in (7, 150):
        ids, mask = tokens(2, n), torch.ones(2, n, dtype=torch.int64)
        mask[0, 5:] = 0
        found, expected = (made(ids, mask, use_cache=False).logits for made in (program.module(), net))
        close(found[mask == 1], expected[mask == 1], 1e-5)


@torch.no_grad()
def test_a_step_that_is_exported_copies_no_keys(monkeypatch):
    monkeypatch.setattr(hidden_keys, "can_flash", lambda *x: True)
    attend, mask = Attend(attention.build("softmax")), torch.ones(2, 100, dtype=torch.bool)
    for queries in (1, 2):
        q, k, v = (torch.randn(2, n, 2, 8) for n in (queries, 100, 100))
        program = torch.export.export(attend, (q, k, v, mask), strict=False)
        assert (COLUMNS in program.graph_module.code) == (queries > 1)


class Attend(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, q, k, v, key_mask):
        return self.inner(q, k, v, key_mask=key_mask)


def call(program, ids, length, cache):
    """With the inputs that generate() gave while it was made: earlier versions give the mask too."""
    inputs = {"input_ids": ids, "past_key_values": cache}
    if "attention_mask" in program.call_spec.in_spec.child(1).context:
        inputs["attention_mask"] = torch.ones(len(ids), length, dtype=torch.int64)
    return program.module()(**inputs)


@pytest.mark.parametrize("mechanism", ["cosformer", "softmax"])
@torch.no_grad()
def test_transformers_exports_the_prompt_and_the_step(mechanism):
    net = build(CosformerForCausalLM, torch.float32, attention=mechanism, num_hidden_layers=1)
    ids = tokens(2, 7)
    made = DynamoExporter().export_for_generation(net, {"input_ids": ids[:, :6]}, DynamoConfig())
    expected = net(ids, use_cache=False).logits
    first = call(made["prefill"], ids[:, :6], 6, CosformerCache(net.config))
    close(first.logits[:, -1], expected[:, 5], 1e-5)
    cache = first.past_key_values
    if mechanism == "softmax":  # a graph that is given a mask hands it on, and the step was made without one
        cache = net(ids[:, :6], use_cache=True).past_key_values
    second = call(made["decode"], ids[:, 6:], 7, cache)
    close(second.logits[:, -1], expected[:, 6], 1e-5)
    assert isinstance(second.past_key_values, CosformerCache)
    assert second.past_key_values.get_seq_length() == 7


@having(recurrent=True, causal=True)
def test_a_cache_is_a_tree(mechanism):
    net = build(CosformerForCausalLM, attention=mechanism, num_hidden_layers=2)
    ids = tokens(2, 6)
    cache = net(ids[:, :5], use_cache=True).past_key_values
    leaves, tree = pytree.tree_flatten(cache)
    again = pytree.tree_unflatten(leaves, pytree.treespec_loads(pytree.treespec_dumps(tree)))
    assert (again.get_seq_length(), again.nbytes, again.is_croppable) == (5, cache.nbytes, cache.is_croppable)
    close(net(ids[:, 5:], past_key_values=again).logits, net(ids[:, 5:], past_key_values=cache).logits)
    empty = pytree.tree_map(lambda x: x, CosformerCache(net.config))
    assert empty.past is None
