"""Tay et al., 2020, sections 3.1 to 3.3: blocks as lists of tokens, the matrix normalised as it stands."""

import math

import torch

PARAMETERS = [{"block": 6}, {"block": 20, "iterations": 3, "temperature": 1.5, "noise": False}]


def sorting_matrix(mechanism, sums, h):
    """S for the summed keys of the blocks that have any: {number of the block: sum [D]}."""
    net, numbers = mechanism.sorting, list(sums)
    rows = []
    for x in numbers:
        hidden = torch.clamp(net.first[h] @ sums[x] + net.first_bias[h, 0], min=0)
        rows.append((net.second[h] @ hidden + net.second_bias[h, 0])[numbers])
    scores = torch.stack(rows) / mechanism.temperature
    matrix = (scores - scores.max().detach()).exp()  # a common factor, gone with the first normalisation
    for _ in range(mechanism.iterations):
        matrix = matrix / matrix.sum(1, keepdim=True)
        matrix = matrix / matrix.sum(0, keepdim=True)
    return matrix


def attention(q, k, v):
    return (k @ q / math.sqrt(len(q))).softmax(0) @ v


def head(mechanism, q, k, v, real, h):
    """The outputs of one head: q, k and v are [T, D], `real` the places of the keys that may be read."""
    size = mechanism.block
    numbers = sorted({j // size for j in real})
    own = {x: [j for j in real if j // size == x] for x in numbers}
    sort = sorting_matrix(mechanism, {x: sum(k[j] for j in own[x]) for x in numbers}, h)
    sorted_to = {}
    for row, x in zip(sort, numbers, strict=True):
        blocks = [(weight, y * size) for weight, y in zip(row, numbers, strict=True)]
        sorted_to[x] = [
            torch.stack([
                sum(weight * tokens[start + s] for weight, start in blocks if start + s in real)
                for s in sorted({j % size for j in real})
            ])
            for tokens in (k, v)
        ]  # fmt: skip
    outs = []
    for i in range(len(q)):
        if i // size in own:
            near = own[i // size]
            outs.append(attention(q[i], k[near], v[near]) + attention(q[i], *sorted_to[i // size]))
        else:
            outs.append(torch.zeros_like(v[i]))  # a block without keys: none were sorted to it either
    return torch.stack(outs)


def transcription(mechanism, q, k, v, *, causal, key_mask=None):
    rows = []
    for b in range(q.shape[0]):
        real = [j for j in range(k.shape[1]) if key_mask is None or key_mask[b, j]]
        if real:
            heads = [head(mechanism, q[b, :, h], k[b, :, h], v[b, :, h], real, h) for h in range(q.shape[2])]
            rows.append(torch.stack(heads, 1))
        else:
            rows.append(torch.zeros_like(v[b]))
    return torch.stack(rows)
