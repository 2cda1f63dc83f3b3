"""Peng et al., 2021: token by token, the recurrence of S and z; with the gate, its recurrence."""

import torch

PARAMETERS = [
    {},
    {"kernel": "arccos", "features": 9},
    {"gate": True, "features": 20},
    {"gate": True, "kernel": "arccos", "scale": 2.0, "redraw_interval": None},
]


def phi(mechanism, x):
    """[B, H, D] to [B, H, F]."""
    x = x / x.norm(dim=-1, keepdim=True).clamp_min(1e-12)
    w = mechanism.vectors * mechanism.sigma[:, None]
    x = torch.einsum("bhd,hmd->bhm", x, w)
    x = x.clamp_min(0) if mechanism.kernel == "arccos" else torch.cat([torch.sin(x), torch.cos(x)], -1)
    return x / w.shape[1] ** 0.5


def transcription(mechanism, q, k, v, *, causal, key_mask=None):
    s, z, passed = 0, 0, []
    for t in range(k.shape[1]):
        keep, take = 1, 1
        if mechanism.gate:
            keep = torch.sigmoid((mechanism.gate_weight * k[:, t]).sum(-1) + mechanism.gate_bias)[..., None]
            take = 1 - keep
        if key_mask is not None:
            seen = key_mask[:, t, None, None]
            keep, take = torch.where(seen, keep, 1), torch.where(seen, take, 0)
        feature = take * phi(mechanism, k[:, t])
        s = (keep * torch.ones_like(feature))[..., None] * s + feature[..., None] * v[:, t, :, None]
        z = keep * z + feature
        passed.append((s, z))
    out = []
    for t in range(q.shape[1]):
        s, z = passed[t] if causal else passed[-1]
        feature = phi(mechanism, q[:, t])
        total = (feature * z).sum(-1).abs().clamp_min(mechanism.eps)
        out.append((feature[..., None] * s).sum(-2) / total[..., None])
    return torch.stack(out, 1)
