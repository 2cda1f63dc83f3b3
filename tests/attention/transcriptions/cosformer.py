"""Qin et al., 2022, equation 10, with its square written out; a head with a window has that in place of M."""

import math

import torch

PARAMETERS = [
    {},
    {"eps": 0.5, "backend": "reference"},
    {"windows": (3, None, 40, 1)},
    {"windows": (2, 7, 320, 30)},
]


def transcription(mechanism, q, k, v, *, causal, key_mask=None):
    i, j = torch.arange(q.shape[1])[:, None], torch.arange(k.shape[1])
    seen = (j <= i) if causal else (j >= 0) & (i >= 0)
    seen = seen[None, None]  # (B, H, i, j)
    if key_mask is not None:
        seen = seen & key_mask[:, None, None]
    weight = torch.einsum("bihd,bjhd->bhij", q.relu(), k.relu())
    windows = mechanism.windows or (None,) * q.shape[2]
    cosines = []
    for window in windows:
        distance = (i - j).double()
        reach = mechanism.horizon if window is None else window
        cosines.append(torch.cos(math.pi / 2 * distance / reach) * (distance.abs() < reach))
    weight = weight * torch.stack(cosines) * seen
    total = weight.sum(-1).clamp_min(mechanism.eps)
    return torch.einsum("bhij,bjhe,bhi->bihe", weight, v, 1 / total)
