"""Zaheer et al., 2020: window, global and random blocks as sets, one block and one head at a time."""

import math

import torch

PARAMETERS = [
    {"block": 4},
    {"block": 3, "window_blocks": 1, "global_blocks": 1, "random_blocks": 2},
    {"block": 2, "window_blocks": 5, "global_blocks": 3, "random_blocks": 1},
    {"block": 5, "global_blocks": 0, "random_blocks": 2},
]


def blocks_seen(mechanism, x, n, head):
    """The blocks that block x of n sees."""
    reach, g = mechanism.window_blocks // 2, mechanism.global_blocks
    window = {y for y in range(n) if abs(x - y) <= reach}
    ends = {y for y in range(n) if y < g - g // 2 or y >= n - g // 2}
    if x in ends:
        return set(range(n))
    free = [y for y in range(n) if y not in window | ends]
    drawn = set()
    for draw in mechanism.draws[head, x].tolist():
        if free:
            drawn.add(free.pop(draw % len(free)))
    return window | ends | drawn


def transcription(mechanism, q, k, v, *, causal, key_mask=None):
    size, length = mechanism.block, k.shape[1]
    rows = []
    for b in range(q.shape[0]):
        real = list(range(length)) if key_mask is None else key_mask[b].nonzero().flatten().tolist()
        n = real[-1] // size + 1 if real else 0
        heads = []
        for h in range(q.shape[2]):
            seen = torch.zeros(length, length, dtype=torch.bool)
            for i in range(length):
                blocks = blocks_seen(mechanism, i // size, n, h)
                for j in real:
                    seen[i, j] = j // size in blocks
            scores = q[b, :, h] @ k[b, :, h].T / math.sqrt(q.shape[3])
            weights = torch.where(seen, scores.exp(), 0)
            heads.append(weights / weights.sum(-1, keepdim=True).clamp_min(1e-300) @ v[b, :, h])
        rows.append(torch.stack(heads, 1))
    return torch.stack(rows)
