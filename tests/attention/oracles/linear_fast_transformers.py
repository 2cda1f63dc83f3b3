"""The authors' own package: pytorch-fast-transformers, whose causal product is in C++ and float32."""

import torch

from cosformer import attention
from tests.attention.oracles._common import both, inputs

MECHANISM, PACKAGE = "linear", "pytorch-fast-transformers"


def compare():
    from fast_transformers.attention import CausalLinearAttention, LinearAttention
    from fast_transformers.masking import FullMask, LengthMask, TriangularCausalMask

    run, qkv = attention.build("linear"), inputs(torch.float32)
    length = qkv[0].shape[1]
    whole = LengthMask(torch.full((2,), length))
    causal = CausalLinearAttention(16)(*qkv, TriangularCausalMask(length), whole, whole)
    yield from both("causal", run(*qkv, causal=True), causal, qkv)
    sizes = torch.tensor([length, 90])
    masked = LinearAttention(16)(*qkv, FullMask(length), whole, LengthMask(sizes, max_len=length))
    key_mask = torch.arange(length) < sizes[:, None]
    yield from both("bidirectional and masked", run(*qkv, key_mask=key_mask), masked, qkv)
