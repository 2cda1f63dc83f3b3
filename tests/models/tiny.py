"""Tiny models with large random weights: at the usual 0.02 outputs are nearly constant, and a broken
cache would pass."""

from dataclasses import replace

import pytest
import torch

from cosformer import attention
from cosformer.models import CosformerConfig


def one_of_each_kind():
    """Names of mechanisms, one for all that have the same abilities and carry the same state: a model cannot
    tell those apart, and tests/attention and test_every_mechanism.py look at each of them."""
    kinds = {}
    for name in attention.names():
        abilities = replace(attention.traits(name), paper="", cost="linear")
        kinds.setdefault((abilities, type(attention.build(name)).state_type), name)
    return tuple(kinds.values())


MECHANISMS = one_of_each_kind()


def having(**wanted):
    """Parametrises over the mechanisms whose traits are these."""
    return pytest.mark.parametrize(
        "mechanism",
        [n for n in MECHANISMS if all(getattr(attention.traits(n), t) == v for t, v in wanted.items())],
    )


def config(**changes):
    sizes = {
        "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 48, "max_position_embeddings": 96, "initializer_range": 0.25,
        "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None, "decoder_start_token_id": 1,
    }  # fmt: skip
    return CosformerConfig.paper(**sizes | changes)


def build(model, dtype=torch.float64, **changes):
    """A model in evaluation mode, every parameter drawn wide, biases, norms and convolutions included."""
    torch.manual_seed(1)
    made = model(config(**changes)).to(dtype).eval()
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if parameter.dim() == 1 or "convolution" in name:
                parameter.add_(torch.randn_like(parameter) * 0.25)
    return made


def tokens(*shape):
    return torch.randint(2, 64, shape)


def close(a, b, tolerance=1e-8):
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def gradients(model, loss):
    """Of every parameter, by name."""
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


PADDINGS = {
    "left": [0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1],
    "right": [1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0],
    "inside": [1, 1, 0, 1, 1, 1, 0, 0, 1, 1, 1, 1],
    "everywhere": [0, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 0],
}


def pad(row, pattern, filler=0):
    """row [n] spread over the ones of a pattern."""
    mask = torch.tensor(pattern, dtype=torch.bool)
    out = torch.full((len(pattern),), filler)
    out[mask] = row
    return out, mask.long()


def padded_batch(pattern):
    """(batch [2, 12], mask, real tokens of each row): a row of that padding, and one without any."""
    rows = [tokens(sum(pattern)), tokens(len(pattern))]
    first, mask = pad(rows[0], pattern)
    return torch.stack([first, rows[1]]), torch.stack([mask, torch.ones_like(mask)]), rows
