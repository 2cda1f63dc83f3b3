"""Katharopoulos et al., 2020, equation 4 with phi(x) = elu(x) + 1, one query at a time."""

import torch


def phi(x):
    return torch.where(x > 0, x + 1, x.clamp(max=0).exp())


def transcription(mechanism, q, k, v, *, causal, key_mask=None):
    out = []
    for b in range(q.shape[0]):
        for i in range(q.shape[1]):
            seen = torch.ones(k.shape[1], dtype=torch.bool) if key_mask is None else key_mask[b].clone()
            if causal:
                seen[i + 1 :] = False
            similarity = torch.einsum("hd,jhd->jh", phi(q[b, i]), phi(k[b, seen]))
            out.append(
                torch.einsum("jh,jhe->he", similarity, v[b, seen])
                / similarity.sum(0).clamp_min(1e-6)[:, None]
            )
    return torch.stack(out).view(*q.shape[:3], v.shape[3])
