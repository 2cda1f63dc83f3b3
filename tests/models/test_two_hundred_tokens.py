"""200 tokens in float32, in padded rows: those that calls without a cache find. One model has a layer of
every attention that carries a state."""

import torch

from cosformer import attention
from cosformer.models import CosformerForCausalLM
from tests.models.test_static import compiled
from tests.models.tiny import PADDINGS, build, padded_batch

NEW = 200
RECURRENT = [n for n in attention.names() if attention.traits(n).recurrent and attention.traits(n).causal]
PARAMETERS = {"cosformer": {"windows": [1, 5, None, 64]}, "rfa": {"gate": True}}


def layers(*names):
    many = {"attention": list(names), "num_hidden_layers": len(names)}
    many["attention_parameters"] = [PARAMETERS.get(name, {}) for name in names]
    return build(CosformerForCausalLM, torch.float32, max_position_embeddings=256, position="rotary", **many)


def generate(net, rows=2, **options):
    torch.manual_seed(2)
    ids, mask, _ = padded_batch(PADDINGS["left"])
    ids, mask = ids[:rows], mask[:rows]
    made = {"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False} | options
    return net.generate(ids, attention_mask=mask, **made), mask


@torch.no_grad()
def test_greedy_search():
    net = layers(*RECURRENT)
    out, mask = generate(net)
    whole = torch.cat([mask, torch.ones(2, NEW, dtype=torch.int64)], 1)
    logits = net(out, attention_mask=whole, use_cache=False).logits
    assert torch.equal(logits[:, mask.shape[1] - 1 : -1].argmax(-1), out[:, mask.shape[1] :])
    assert len(out[:, mask.shape[1] :].unique()) > 10, "it does not say the same thing all the time"
    torch.compiler.reset()
    assert torch.equal(generate(net, **compiled())[0], out)


@torch.no_grad()
def test_beams():
    net = layers("cosformer", "softmax")
    expected, _ = generate(net, 1, num_beams=2, use_cache=False)
    assert torch.equal(generate(net, 1, num_beams=2)[0], expected)
