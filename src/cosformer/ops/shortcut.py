"""Calls of a kind that was seen before go straight to their kernels.

For a short sequence it takes longer to check a call, to choose who computes it and to fill in what was left
out than the GPU is at work. All that depends on how the tensors lie and on settings, and so does what a
backend starts: where it can play a call again for tensors that lie the same way, the next call of that kind
is played at once. Only plain inference on a GPU: no gradients, masks, documents or states.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from cosformer.ops.autograd import is_traced

Play = Callable[[Tensor, Tensor, Tensor], Tensor]
MOST = 1024

_known: dict[Any, Play | None] = {}


def kind(q: Any, k: Any, v: Any, causal: Any, horizon: Any, eps: Any, backend: Any) -> tuple[Any, ...] | None:
    """What all calls of a kind have in common, None where every call has to be looked at."""
    if torch.compiler.is_compiling() or not (type(q) is type(k) is type(v) is Tensor) or not q.is_cuda:
        return None
    if is_traced(q, k, v) or torch.is_autocast_enabled("cuda"):
        return None
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        return None
    if type(causal) is not bool or type(eps) is not float or type(backend) is not str:
        return None
    if horizon is not None and type(horizon) is not int and type(horizon) is not float:
        return None
    a, b, c = q.data_ptr(), k.data_ptr(), v.data_ptr()
    device = q.get_device()
    if (a | b | c) % 16 or device != torch.cuda.current_device():
        return None
    return (
        device, k.get_device(), v.get_device(), q.dtype, k.dtype, v.dtype, q.shape, k.shape, v.shape,
        q.stride(), k.stride(), v.stride(), a == b, a == c, b == c, causal, horizon, eps, backend,
    )  # fmt: skip


def known(kind: tuple[Any, ...] | None) -> Play | None:
    return None if kind is None else _known.get(kind)


def remember(kind: tuple[Any, ...], again: Callable[[], Play | None]) -> None:
    """`again`: asks whoever served the call whether it can be played; once."""
    if kind not in _known:
        if len(_known) >= MOST:
            _known.clear()
        _known[kind] = again()
