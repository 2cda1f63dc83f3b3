"""Inputs for the comparisons, and values with gradients of both sides."""

import torch


def inputs(dtype=torch.float64, length=150, dim=16):
    """q, k, v [2, T, 4, D]."""
    return [torch.randn(2, length, 4, dim, dtype=dtype, requires_grad=True) for _ in range(3)]


def both(what, ours, theirs, inputs, names="qkv"):
    """The outputs [B, T, H, D] and their gradients, as things to compare."""
    weight = torch.randn(ours.shape, dtype=ours.dtype, generator=torch.Generator().manual_seed(2))
    yield what, ours, theirs
    gradients = [torch.autograd.grad(x, inputs, weight, retain_graph=True) for x in (ours, theirs)]
    for name, a, b in zip(names, *gradients, strict=True):
        yield f"{what}, gradient of {name}", a, b
