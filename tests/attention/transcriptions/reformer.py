"""Kitaev et al., 2020, equations 2 to 6 and appendix A: the sets P_i^r token by token."""

import math

import torch

PARAMETERS = [
    {"rounds": 2},
    {"rounds": 1, "chunk": 4, "buckets": 6},
    {"rounds": 3, "chunk": 2, "buckets": 4},
]


def sets(mechanism, q, real, causal):
    """P_i^r for each round r and each real token i, for the queries [T, D] of one head."""
    found = []
    for rotation in mechanism.rotations:
        rotated = q @ rotation
        bucket = torch.cat([rotated, -rotated], -1).argmax(-1).tolist()
        place = {j: s for s, j in enumerate(sorted(real, key=lambda j: (bucket[j], j)))}
        sees = {}
        for i in real:
            same = [j for j in real if bucket[j] == bucket[i]]
            if causal:
                sees[i] = [j for j in same if j <= i and place[i] - place[j] <= mechanism.chunk]
            else:
                chunk = {j: place[j] // mechanism.chunk for j in same}
                sees[i] = [j for j in same if chunk[i] - 1 <= chunk[j] <= chunk[i]]
        found.append(sees)
    return found


def token(i, q, keys, v, rounds):
    outs, totals = [], []
    for sees in rounds:
        seen = sees[i]
        m = [1e5 if j == i else math.log(sum(j in other[i] for other in rounds)) for j in seen]
        scores = keys[seen] @ q[i] / math.sqrt(q.shape[1]) - torch.tensor(m, dtype=q.dtype)
        totals.append(scores.logsumexp(0))
        outs.append((scores - totals[-1]).exp() @ v[seen])
    share = (torch.stack(totals) - torch.stack(totals).logsumexp(0)).exp()
    return share @ torch.stack(outs)


def transcription(mechanism, q, k, v, *, causal, key_mask=None):
    out = []
    for b in range(q.shape[0]):
        real = [j for j in range(q.shape[1]) if key_mask is None or key_mask[b, j]]
        for h in range(q.shape[2]):
            queries, values = q[b, :, h], v[b, :, h]
            rounds = sets(mechanism, queries, real, causal)
            keys = queries / queries.norm(dim=-1, keepdim=True)
            out += [
                token(i, queries, keys, values, rounds) if i in real else torch.zeros_like(values[i])
                for i in range(q.shape[1])
            ]
    return torch.stack(out).view(q.shape[0], q.shape[2], q.shape[1], -1).transpose(1, 2)
