"""The forward under torch.compile where there is a cache, and generation over a compiled forward."""

import pytest
import torch

from cosformer.models import CosformerCache, CosformerForCausalLM
from tests.models.tiny import build, close, tokens


@pytest.fixture(autouse=True)
def _no_graphs_of_others():
    torch.compiler.reset()


def test_generation_over_a_compiled_forward():
    """Every prompt was once refused: a graph took position_ids for packed documents."""
    ids = tokens(2, 5)
    net = build(CosformerForCausalLM, num_hidden_layers=1)
    options = {"max_new_tokens": 2, "do_sample": False}
    expected = net.generate(ids, **options)
    net.forward = torch.compile(net.forward, backend="eager")
    assert torch.equal(net.generate(ids, **options), expected)


@pytest.mark.parametrize("mechanism", ["cosformer", "softmax"])
@torch.no_grad()
def test_a_graph_fills_a_cache(mechanism):
    net = build(CosformerForCausalLM, attention=mechanism, num_hidden_layers=1)
    call = torch.compile(net.forward, backend="eager", fullgraph=True)
    ids = tokens(2, 7)
    expected = net(ids, use_cache=False).logits
    cache = CosformerCache(net.config)
    call(ids[:, :5], position_ids=torch.arange(5)[None], past_key_values=cache)
    for t in (5, 6):
        close(call(ids[:, t : t + 1], past_key_values=cache).logits[:, -1], expected[:, t])
