"""The module of the linformer package, from its own projections: E and F for all heads, or E alone."""

import torch

from cosformer import attention
from tests.attention.oracles._common import both

MECHANISM, PACKAGE, TOLERANCE = "linformer", "linformer", 1e-10


def compare():
    from linformer import LinformerSelfAttention

    x = torch.randn(2, 70, 64, dtype=torch.float64, requires_grad=True)
    for length, shared in ((70, False), (100, False), (100, True)):
        theirs = LinformerSelfAttention(64, length, k=20, heads=4, share_kv=shared).double()
        theirs.to_out = torch.nn.Identity()
        run = attention.build(
            "linformer",
            projected_length=20,
            sharing="key_value" if shared else "headwise",
            max_length=length,
        ).double()
        keys, values = (theirs.to_k, theirs.to_k) if shared else (theirs.to_k, theirs.to_v)
        with torch.no_grad():
            run.key_projection.copy_(theirs.proj_k.T)
            if not shared:
                run.value_projection.copy_(theirs.proj_v.T)
        ours = run(*(f(x).unflatten(2, (4, -1)) for f in (theirs.to_q, keys, values)))
        what = f"70 of {length} positions{', one projection' if shared else ''}"
        yield from both(what, ours.flatten(2), theirs(x), [x], "x")
