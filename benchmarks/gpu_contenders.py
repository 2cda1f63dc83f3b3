"""What is compared on a GPU, each in its best form: the operator and its backends, cuDNN's softmax, the
authors' form and flash-linear-attention."""

import importlib.util
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.contenders import Attend, Contender, authors_form, features, operator

TUNED = ("fla", "fla-relu")
TUNING = {"warmup": 5, "rep": 20}  # milliseconds for each of a hundred candidates (Triton's own: 25, 100)


def softmax(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2)


def _tune_briefly() -> None:
    import triton.testing

    triton.testing.do_bench = partial(triton.testing.do_bench, **TUNING)


def _fla(of: Callable[[Tensor], Tensor]) -> Attend:
    """flash-linear-attention over features [B, T, H, F], contiguous in that order: it copies other layouts
    before it starts."""

    def attend(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
        # Imported at the first call: its many imports would slow down the measurement of launch overhead.
        from fla.ops.linear_attn import chunk_linear_attn

        out = chunk_linear_attn(of(q), of(k), v, scale=1.0, normalize=True)
        return out[0] if isinstance(out, tuple) else out

    return attend


def fla_forms(of: Callable[[Tensor], Tensor]) -> dict[str, Attend]:
    """With the features as PyTorch operators, and compiled into one kernel."""
    return {"eager": _fla(of), "compiled": _fla(torch.compile(of))}


def contenders() -> tuple[list[Contender], dict[str, str]]:
    compiled = torch.compile(authors_form)
    found = [
        Contender("cosformer", "cosFormer", operator("auto")),
        Contender("cosformer[triton]", "cosFormer, portable kernels", operator("triton")),
        Contender("sdpa", "softmax (cuDNN)", softmax, computes="softmax"),
        Contender("authors", "authors' einsum", authors_form, modes=("bidirectional",)),
    ]
    absent = {}
    if importlib.util.find_spec("fla") is None:
        absent["fla"] = "flash-linear-attention is not installed"
    else:
        _tune_briefly()
        wide, narrow = (fla_forms(of) for of in (partial(features, time=-3), torch.relu))
        found += [
            # Its running sums are bfloat16, and eps is added.
            Contender(
                "fla", "fla, cosFormer features", wide["eager"], computes="roughly cosformer",
                modes=("causal",), forms=wide,
            ),
            Contender(
                "fla-relu", "fla, ReLU only", narrow["eager"], computes="part",
                modes=("causal",), forms=narrow,
            ),
        ]  # fmt: skip
    found += [
        Contender("authors-compiled", "authors' einsum, compiled", compiled, modes=("bidirectional",)),
        Contender("cosformer[chunked]", "cosFormer chunked", operator("chunked")),
    ]
    return found, absent
