"""elu + 1 features through performer-pytorch's linear attention."""

import torch.nn.functional as F

from cosformer import attention
from tests.attention.oracles._common import both, inputs

MECHANISM, PACKAGE, TOLERANCE = "linear", "performer-pytorch", 1e-10


def compare():
    from performer_pytorch.performer_pytorch import causal_linear_attention_noncuda, linear_attention

    run, qkv = attention.build("linear"), inputs()
    q, k, v = (x.transpose(1, 2) for x in qkv)
    q, k = F.elu(q) + 1, F.elu(k) + 1
    causal = causal_linear_attention_noncuda(q, k, v, eps=0)
    yield from both("causal", run(*qkv, causal=True), causal.transpose(1, 2), qkv)
    yield from both("bidirectional", run(*qkv), linear_attention(q, k, v).transpose(1, 2), qkv)
