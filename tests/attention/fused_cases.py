"""Calls of the attentions that cosFormer's operator can compute, and their results."""

import torch

from cosformer import attention, cosformer_attention
from cosformer.attention import linear_base

NAMES = ("relu", "linear")
FLOOR = {torch.float32: 2**-22, torch.bfloat16: 2**-9, torch.float16: 2**-12}


def _mask(batch, length):
    mask = torch.rand(batch, length) < 0.6
    mask[1, :5] = False
    return mask


def _no_keys(batch, length):
    mask = torch.ones(batch, length, dtype=torch.bool)
    mask[1] = False
    return mask


# Sizes other than the default, and options; a mask is made for [B, Tk].
CALLS = {
    "plain": ({}, {}),
    "short": ({"tq": 2}, {}),
    "grouped": ({"heads": 4, "kv_heads": 2, "value_dim": 24}, {}),
    "masked": ({}, {"key_mask": _mask}),
    "a row without keys": ({}, {"key_mask": _no_keys}),
    "packed": ({"batch": 1}, {"cu_seqlens": torch.tensor([0, 1, 20, 20, 131, 150])}),
    "fewer queries": ({"tq": 40, "tk": 170}, {}),
    "more queries": ({"tq": 170, "tk": 40}, {}),
    "masked, with an offset": ({"tq": 40, "tk": 170}, {"key_mask": _mask, "query_offset": 30}),
    "queries before the keys": ({}, {"query_offset": -3}),
    "no features": ({"zeros": True}, {}),
}


def make(kind, **sizes):
    """(q, k, v) in float64 and the options of a call; `sizes` where the call does not have its own."""
    own, options = CALLS[kind]
    inputs = _inputs(**sizes | own)
    batch, keys = inputs[1].shape[:2]
    return inputs, {n: x(batch, keys) if callable(x) else x for n, x in options.items()}


def _inputs(*, tq=150, tk=None, batch=2, heads=2, kv_heads=None, dim=16, value_dim=None, zeros=False):
    """`zeros`: a third of the queries and of the keys have no features, nor all that some queries see."""
    tk, kv_heads, value_dim = tk or tq, kv_heads or heads, value_dim or dim
    shapes = (batch, tq, heads, dim), (batch, tk, kv_heads, dim), (batch, tk, kv_heads, value_dim)
    q, k, v = (torch.randn(shape, dtype=torch.float64) for shape in shapes)
    if zeros:
        q[:, ::3], k[:, 1::3], k[1, :60] = -200, -200, -200
        q[:, 1, :, ::2] = 0  # where ReLU has a corner
    return [q, k, v]


def results(run, inputs, causal, options):
    """The output, and the gradients of a fixed random sum of it."""
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    options = {n: x.to(inputs[0].device) if torch.is_tensor(x) else x for n, x in options.items()}
    out = run(*inputs, causal=causal, **options)
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    grads = torch.autograd.grad(out, inputs, weight.to(out))
    return dict(zip(("o", "dq", "dk", "dv"), (out.detach(), *grads), strict=True))


def reference(name):
    """The equation with features that are rounded to the type of the inputs, computed in that type."""
    mechanism = attention.build(name)

    def run(q, k, v, **options):
        features = mechanism.before_relu(q, k)
        return cosformer_attention(*features, v, horizon=linear_base.ENDLESS, backend="reference", **options)

    return run
