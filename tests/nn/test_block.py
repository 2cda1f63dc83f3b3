"""Multi-head attention around any mechanism, feed-forward, norm, and the block of them."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from cosformer import CosformerAttention, attention
from cosformer.nn import Block, CrossAttentionState, FeedForward, MultiheadAttention, build_norm

# Those that can do everything a block may ask for.
NEEDED = ("causal", "bidirectional", "cross", "key_mask", "recurrent")
ABLE = [n for n in attention.names() if all(getattr(attention.traits(n), trait) for trait in NEEDED)]
NAMES = pytest.mark.parametrize("name", ABLE)


def multihead(name, parameters=None, **options):
    sizes = {"num_heads": 4, "num_kv_heads": options.get("num_kv_heads", 4), "head_dim": 8, "max_length": 64}
    return MultiheadAttention(
        32, 4, attention.fit(name, parameters or {}, horizon=64, **sizes), **options
    ).double()


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def inputs(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def test_around_cosformer_it_is_the_papers_module():
    ours = multihead("cosformer", num_kv_heads=2, causal=True)
    papers = CosformerAttention(32, 4, num_kv_heads=2, causal=True, horizon=64, dtype=torch.float64)
    papers.load_state_dict(ours.state_dict())
    x = inputs(2, 30, 32)
    out, state = ours(x)
    close(out, papers(x))
    assert state is None


@NAMES
def test_pieces_with_a_state_are_the_whole(name):
    module, x = multihead(name, causal=True), inputs(2, 20, 32)
    first, state = module(x[:, :13], return_state=True)
    second, _ = module(x[:, 13:], state=state)
    close(torch.cat([first, second], 1), module(x)[0])


@NAMES
def test_rotation_reaches_queries_and_keys_only(name):
    module, x, seen = multihead(name), inputs(2, 9, 32), []

    def rotate(heads, *, key=False):
        seen.append((key, heads.shape))
        return heads.flip(-1)

    out, _ = module(x, rotate=rotate)
    assert seen == [(False, (2, 9, 4, 8)), (True, (2, 9, 4, 8))]
    turned = multihead(name)
    weights = module.state_dict()
    for part in ("q_proj", "k_proj"):
        for kind in ("weight", "bias"):
            rows = weights[f"{part}.{kind}"].unflatten(0, (4, 8))
            weights[f"{part}.{kind}"] = rows.flip(1).flatten(0, 1)
    turned.load_state_dict(weights)
    close(out, turned(x)[0])


def test_only_a_mechanism_goes_in():
    with pytest.raises(
        TypeError, match=r"attention must be a mechanism, as cosformer.attention.build makes it"
    ):
        MultiheadAttention(32, 4, "cosformer")
    with pytest.raises(ValueError, match="embed_dim must be a multiple of num_heads 5"):
        MultiheadAttention(32, 5, attention.build("softmax"))


def test_feed_forward_is_its_equation():
    x = inputs(2, 3, 8)
    gelu = FeedForward(8, 20).double()
    w1, b1, w2, b2 = gelu.up_proj.weight, gelu.up_proj.bias, gelu.down_proj.weight, gelu.down_proj.bias
    close(gelu(x), F.gelu(x @ w1.T + b1) @ w2.T + b2)
    gated = FeedForward(8, 20, kind="gated", bias=False).double()
    up, gate, down = gated.up_proj.weight, gated.gate_proj.weight, gated.down_proj.weight
    g = x @ gate.T
    close(gated(x), (g * torch.sigmoid(g) * (x @ up.T)) @ down.T)
    with pytest.raises(ValueError, match="must be one of gelu, gated, but got 'relu'"):
        FeedForward(8, 20, kind="relu")


def test_norms_are_their_equations():
    x = inputs(4, 8)
    layer, rms = (build_norm(kind, 8, 1e-5).double() for kind in ("layer", "rms"))
    centred = x - x.mean(-1, keepdim=True)
    close(layer(x), centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt())
    close(rms(x), x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt())
    with pytest.raises(ValueError, match="norm must be one of layer, rms"):
        build_norm("batch", 8, 1e-5)


def block(name, *, cross=False, pre_norm=True, dropout=0.0):
    made = Block(
        multihead(name, causal=True),
        FeedForward(32, 40).double(),
        lambda: build_norm("layer", 32, 1e-5).double(),
        cross_attention=multihead(name) if cross else None,
        pre_norm=pre_norm,
        dropout=dropout,
    )
    for parameter in made.parameters():
        nn.init.normal_(parameter, std=0.25)
    return made


@pytest.mark.parametrize("pre_norm", [True, False], ids=["pre", "post"])
@NAMES
def test_a_block_is_its_parts(name, pre_norm):
    made = block(name, cross=True, pre_norm=pre_norm)
    x, source = inputs(2, 9, 32), inputs(2, 14, 32)
    mask = torch.rand(2, 14) < 0.7
    parts = (
        (made.attention_norm, lambda y: made.attention(y)[0]),
        (
            made.cross_attention_norm,
            lambda y: made.cross_attention(y, source, key_mask=mask, query_offset=0)[0],
        ),
        (made.feed_forward_norm, made.feed_forward),
    )
    expected = x
    for norm, part in parts:
        expected = expected + part(norm(expected)) if pre_norm else norm(expected + part(expected))
    close(made(x, source, memory=CrossAttentionState(mask)).hidden, expected)


@NAMES
def test_a_block_with_a_memory_step_by_step(name):
    made, x, source = block(name, cross=True), inputs(2, 9, 32), inputs(2, 14, 32)
    whole = made(x, source).hidden
    outs, state, memory_state = [], None, None
    for t in range(9):
        memory = CrossAttentionState(state=memory_state, positions=torch.full((2,), t), seen=t)
        out, state, memory_state = made(
            x[:, t : t + 1], source, state=state, return_state=True, memory=memory
        )
        outs.append(out)
    close(torch.cat(outs, 1), whole)


@pytest.mark.parametrize("name", ["cosformer", "softmax"])
def test_a_source_that_was_forgotten(name):
    """With windows a state has the last keys of the source alone."""
    made = block(name, cross=True)
    made.cross_attention = multihead(name, {"windows": [2, 3, 4, 5]})
    x, source = inputs(2, 9, 32), inputs(2, 14, 32)
    _, _, memory = made(x, source, return_state=True)
    at = CrossAttentionState(state=memory, positions=torch.full((2,), 9), seen=9)
    with pytest.raises(ValueError, match="cross-attention with windows cannot go on from a state"):
        made(x, source, memory=at)


def test_cross_attention_needs_a_source():
    with pytest.raises(ValueError, match="this block has cross-attention: source must be given"):
        block("cosformer", cross=True)(inputs(1, 3, 32))


def test_dropout_is_for_training():
    made, x = block("cosformer", dropout=0.5), inputs(1, 6, 32)
    assert (made(x).hidden - made(x).hidden).abs().max() > 1e-3
    made.eval()
    assert torch.equal(made(x).hidden, made(x).hidden)
