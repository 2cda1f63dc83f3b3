"""Longformer's layer in transformers, with one set of projections; its softmax is in float32."""

import torch

from cosformer import attention
from tests.attention.oracles._common import both

MECHANISM, PACKAGE = "longformer", "transformers"


def compare():
    from transformers import LongformerConfig
    from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

    x = torch.randn(2, 144, 64, dtype=torch.float64, requires_grad=True)
    for window, first in ((8, 0), (16, 3), (48, 1)):
        config = LongformerConfig(hidden_size=64, num_attention_heads=4, attention_window=[window])
        theirs = LongformerSelfAttention(config, 0).double().eval()
        for kind in ("query", "key", "value"):
            getattr(theirs, f"{kind}_global").load_state_dict(getattr(theirs, kind).state_dict())
        real = torch.ones(2, 144, dtype=torch.bool)
        if first:  # with nothing but padding in a window, its gradients are NaN
            real[1, 101:] = False
        about = torch.zeros(2, 144, dtype=torch.float64)
        about[:, :first] = 10000
        about[~real] = -10000
        expected = theirs(
            x,
            attention_mask=about,
            is_index_masked=about < 0,
            is_index_global_attn=about > 0,
            is_global_attn=first > 0,
        )[0]
        run = attention.build("longformer", window=window, global_tokens=first)
        heads = (f(x).unflatten(2, (4, -1)) for f in (theirs.query, theirs.key, theirs.value))
        ours = run(*heads, key_mask=real).flatten(2)
        yield from both(f"window {window}, {first} global", ours[real], expected[real], [x], "x")
