"""Tay et al., 2020: B_i for each kind, one query and one head at a time."""

import torch

PARAMETERS = [
    {},
    {"kind": "random"},
    {"kind": "random", "learned": False},
    {"kind": "factorised_dense"},
    {"kind": "factorised_random", "rank": 3},
]


def network(net, h, x):
    hidden = torch.clamp(net.first[h] @ x + net.first_bias[h, 0], min=0)
    return net.second[h] @ hidden + net.second_bias[h, 0]


def row(mechanism, h, i, x):
    """B_i over all positions."""
    if mechanism.kind == "dense":
        return network(mechanism.synthesis, h, x)
    if mechanism.kind == "random":
        return mechanism.weight[h, i]
    if mechanism.kind == "factorised_random":
        return (mechanism.left[h, i] * mechanism.right[h]).sum(-1)
    inner, outer = network(mechanism.inner_synthesis, h, x), network(mechanism.outer_synthesis, h, x)
    # Tiling: one factor is repeated as a whole, the other entry by entry.
    return inner.repeat(len(outer)) * outer.repeat_interleave(len(inner))


def transcription(mechanism, q, k, v, *, causal, key_mask=None):
    out = []
    for b in range(q.shape[0]):
        for i in range(q.shape[1]):
            seen = [
                j
                for j in range(v.shape[1])
                if (not causal or j <= i) and (key_mask is None or key_mask[b, j])
            ]
            for h in range(q.shape[2]):
                weights = row(mechanism, h, i, q[b, i, h])[seen].softmax(-1)
                out.append(weights @ v[b, seen, h])  # an empty sum is zero
    return torch.stack(out).view_as(v)
