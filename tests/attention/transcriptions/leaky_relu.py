"""Qin et al., 2022, Table 1: LeakyReLU features; the absolute sum of the weights is at least eps."""

import torch

PARAMETERS = [{}, {"slope": 0.3, "eps": 0.5}]


def transcription(mechanism, q, k, v, *, causal, key_mask=None):
    seen = torch.ones(q.shape[0], 1, q.shape[1], k.shape[1], dtype=torch.bool)
    if causal:
        seen = seen.tril()
    if key_mask is not None:
        seen = seen & key_mask[:, None, None]
    q, k = (torch.where(x > 0, x, mechanism.slope * x) for x in (q, k))
    weight = torch.einsum("bihd,bjhd->bhij", q, k) * seen
    total = weight.sum(-1).abs().clamp_min(mechanism.eps)
    return torch.einsum("bhij,bjhe,bhi->bihe", weight, v, 1 / total)
