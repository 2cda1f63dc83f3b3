"""Choromanski et al., 2021, lemma 1: every weight as a sum over the random vectors, nothing scaled."""

import torch

PARAMETERS = [{}, {"features": 7}, {"features": 33, "redraw_interval": None}]


def transcription(mechanism, q, k, v, *, causal, key_mask=None):
    w = mechanism.projection  # (m, D)
    seen = torch.ones(q.shape[0], 1, q.shape[1], k.shape[1], dtype=torch.bool)
    if causal:
        seen = seen.tril()
    if key_mask is not None:
        seen = seen & key_mask[:, None, None]
    q, k = q / q.shape[-1] ** 0.25, k / k.shape[-1] ** 0.25
    weight = torch.zeros(q.shape[0], q.shape[2], q.shape[1], k.shape[1], dtype=q.dtype)
    for r in range(len(w)):
        of_q = torch.exp(q @ w[r] - (q * q).sum(-1) / 2)  # (B, T, H)
        of_k = torch.exp(k @ w[r] - (k * k).sum(-1) / 2)
        weight = weight + torch.einsum("bih,bjh->bhij", of_q, of_k) / len(w)
    weight = weight * seen
    total = weight.sum(-1)
    total = torch.where(total > 0, total, 1)
    return torch.einsum("bhij,bjhe,bhi->bihe", weight, v, 1 / total)
