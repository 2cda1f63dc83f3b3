"""Random Fourier features of pytorch-fast-transformers on unit vectors, from the same random vectors."""

import torch
import torch.nn.functional as F

from cosformer import attention
from tests.attention.oracles._common import both, inputs

MECHANISM, PACKAGE = "rfa", "pytorch-fast-transformers"


def compare():
    from fast_transformers.attention import CausalLinearAttention, LinearAttention
    from fast_transformers.feature_maps import RandomFourierFeatures
    from fast_transformers.masking import FullMask, LengthMask, TriangularCausalMask

    run, qkv = attention.build("rfa", num_kv_heads=4, head_dim=16, features=24), inputs(torch.float32)
    with torch.no_grad():
        run.vectors.copy_(run.vectors[:1].clone())  # the package has one set for all heads
    length = qkv[0].shape[1]
    whole = LengthMask(torch.full((2,), length))

    def theirs(kind, mask):
        made = kind(16, RandomFourierFeatures.factory(n_dims=48, softmax_temp=1.0, deterministic_eval=True))
        made.feature_map.omega = run.vectors[0].T
        q, k = (F.normalize(x, dim=-1) for x in qkv[:2])
        return made.eval()(q, k, qkv[2], mask, whole, whole)

    causal = theirs(CausalLinearAttention, TriangularCausalMask(length))
    yield from both("causal", run(*qkv, causal=True), causal, qkv)
    yield from both("bidirectional", run(*qkv), theirs(LinearAttention, FullMask(length)), qkv)
