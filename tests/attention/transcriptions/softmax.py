"""Vaswani et al., 2017, equation 1, one query at a time; a head with a window sees the keys within it."""

import torch

PARAMETERS = [
    {},
    {"windows": (3, None, 40, 1)},
    {"windows": (2, 7, 320, 30)},
    {"windows": (9, 9, 1, 20)},
]


def transcription(mechanism, q, k, v, *, causal, key_mask=None):
    out = []
    for b in range(q.shape[0]):
        for i in range(q.shape[1]):
            for h in range(q.shape[2]):
                window = mechanism.windows[h] if mechanism.windows is not None else None
                seen = [
                    j
                    for j in range(k.shape[1])
                    if (not causal or j <= i)
                    and (key_mask is None or key_mask[b, j])
                    and (window is None or i - window < j < i + window)
                ]
                if seen:
                    scores = k[b, seen, h] @ q[b, i, h] / q.shape[3] ** 0.5
                    out.append(scores.softmax(0) @ v[b, seen, h])
                else:
                    out.append(torch.zeros_like(v[b, 0, h]))
    return torch.stack(out).view(*q.shape[:3], v.shape[3])
