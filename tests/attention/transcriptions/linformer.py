"""Wang et al., 2020, equation 7: the projected keys and values summed token by token."""

import math

import torch

PARAMETERS = [
    {},
    {"projected_length": 5, "sharing": "key_value"},
    {"projected_length": 3, "sharing": "none"},
]


def transcription(mechanism, q, k, v, *, causal, key_mask=None):
    e = mechanism.key_projection
    f = e if mechanism.sharing == "key_value" else mechanism.value_projection
    rows = []
    for b in range(q.shape[0]):
        heads = []
        for h in range(q.shape[2]):
            own = h if mechanism.sharing == "none" else 0
            real = [j for j in range(k.shape[1]) if key_mask is None or key_mask[b, j]]
            keys, values = (torch.zeros(e.shape[1], x.shape[3], dtype=x.dtype) for x in (k, v))
            for j in real:
                keys = keys + e[own, :, j, None] * k[b, j, h]
                values = values + f[own, :, j, None] * v[b, j, h]
            heads.append((q[b, :, h] @ keys.T / math.sqrt(q.shape[3])).softmax(-1) @ values)
        rows.append(torch.stack(heads, 1))
    return torch.stack(rows)
