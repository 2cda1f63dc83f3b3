"""Qin et al., 2022, Table 1: ReLU features, no cosine, weights over their sum; a head with a window has no
weight beyond it."""

import torch

PARAMETERS = [{}, {"windows": (3, None, 40, 1)}, {"windows": (2, 7, 320, 30), "eps": 0.5}]


def transcription(mechanism, q, k, v, *, causal, key_mask=None):
    seen = torch.ones(q.shape[0], 1, q.shape[1], k.shape[1], dtype=torch.bool)
    if causal:
        seen = seen.tril()
    if key_mask is not None:
        seen = seen & key_mask[:, None, None]
    for h, window in enumerate(mechanism.windows or ()):
        for i in range(q.shape[1]) if window is not None else ():
            far = [j for j in range(k.shape[1]) if not i - window < j < i + window]
            seen = seen.expand(-1, q.shape[2], -1, -1).clone()
            seen[:, h, i, far] = False
    weight = torch.einsum("bihd,bjhd->bhij", q.clamp_min(0), k.clamp_min(0)) * seen
    total = weight.sum(-1).clamp_min(mechanism.eps)
    return torch.einsum("bhij,bjhe,bhi->bihe", weight, v, 1 / total)
