"""Qin et al., 2022, Table 1: ReLU features, no cosine, weights over their sum."""

import torch


def transcription(mechanism, q, k, v, *, causal, key_mask=None):
    seen = torch.ones(q.shape[0], 1, q.shape[1], k.shape[1], dtype=torch.bool)
    if causal:
        seen = seen.tril()
    if key_mask is not None:
        seen = seen & key_mask[:, None, None]
    weight = torch.einsum("bihd,bjhd->bhij", q.clamp_min(0), k.clamp_min(0)) * seen
    total = weight.sum(-1).clamp_min(mechanism.eps)
    return torch.einsum("bhij,bjhe,bhi->bihe", weight, v, 1 / total)
