"""FAVOR+ as performer-pytorch computes it, from the same random vectors; its additive constants set to 0."""

from functools import partial

from cosformer import attention
from tests.attention.oracles._common import both, inputs

MECHANISM, PACKAGE, TOLERANCE = "performer", "performer-pytorch", 1e-10


def compare():
    from performer_pytorch.performer_pytorch import (
        causal_linear_attention_noncuda,
        linear_attention,
        softmax_kernel,
    )

    run = attention.build("performer", head_dim=16, features=40).double()
    qkv = inputs()
    q, k, v = (x.transpose(1, 2) for x in qkv)
    features = partial(softmax_kernel, projection_matrix=run.projection, eps=0)
    q, k = features(q, is_query=True), features(k, is_query=False)
    causal = causal_linear_attention_noncuda(q, k, v, eps=0)
    yield from both("causal", run(*qkv, causal=True), causal.transpose(1, 2), qkv)
    yield from both("bidirectional", run(*qkv), linear_attention(q, k, v).transpose(1, 2), qkv)
