"""cosFormer as an attention implementation of Hugging Face transformers.

    from cosformer.integrations.transformers import enable, verify

    enable()
    model = AutoModel.from_pretrained(..., attn_implementation="cosformer")
    verify(model)

Two functions are registered under one name: the attention, and the one that makes its mask. Without
the second, transformers hands over no mask at all and padding is attended to in silence.

The host keeps its projections, its positions (learned or rotary, applied before the call) and its
key-value cache, which still grows with the text. What is replaced is softmax(q k^T / sqrt(d)) v, by

    o_i = sum_j w_ij v_j / sum_j w_ij,   w_ij = (ReLU(q_i) . ReLU(k_j)) cos((pi/2)(i - j)/M)

The host's scaling has no effect on it: a positive factor cancels between numerator and denominator.
Only distances i - j matter, so padded keys have to be masked and nothing else.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from cosformer.integrations import refusals
from cosformer.integrations.hosts import NAME, Settings, is_cross, looks_across
from cosformer.integrations.report import AttentionUse, describe
from cosformer.ops import cosformer_attention
from cosformer.ops.backends import NAMES
from cosformer.ops.checks import positive
from cosformer.ops.windows import check_windows, public

try:
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import bidirectional_mask_function, causal_mask_function
    from transformers.utils.output_capturing import _active_collector
except ImportError as error:
    raise ImportError(
        "cosformer.integrations.transformers needs Hugging Face transformers, 5.17 or later: "
        'pip install "transformers>=5.17".'
    ) from error

__all__ = ["AttentionUse", "enable", "recorded_calls", "report", "verify"]

_settings = Settings()
_recordings: list[list[nn.Module]] = []


def enable(
    *,
    horizon: float | None = None,
    windows: Sequence[int | None] | None = None,
    backend: str = "auto",
    also: Iterable[str] = (),
) -> None:
    """Make `attn_implementation="cosformer"` known to transformers, in the whole process.

    It is verified in BERT, RoBERTa, GPT-2, Llama, BART and ViT. A second call replaces the settings of
    the first, also for models that run already.

    Args:
        horizon: M for every model whose configuration has no `cosformer_horizon`. Left out, M is the
            greatest length that the model was built for: `max_position_embeddings`, or the number of
            patches and one. A text beyond M is an error.
        windows: an int or None for each key-value head, as in `cosformer_attention`, for the self-attention
            of every model whose configuration has no `cosformer_windows`. Where every head has one, no
            horizon is needed. The host's key-value cache still keeps every key.
        backend: of the operator, as in `cosformer_attention`.
        also: further model types (`config.model_type`) to accept, unverified.
    """
    global _settings
    if backend not in NAMES:
        raise ValueError(f"backend must be one of {', '.join(NAMES)}, but got {backend!r}.")
    if isinstance(also, str):
        raise TypeError(f"also must be a list of model types, but got the string {also!r}.")
    _settings = Settings(
        None if horizon is None else positive("horizon", horizon),
        backend,
        tuple(also),
        public(check_windows(windows, None)),
    )
    AttentionInterface.register(NAME, _attend)
    AttentionMaskInterface.register(NAME, _key_mask)


def report(model: nn.Module) -> list[AttentionUse]:
    """Every attention module of a model, in order: whether it runs cosFormer, and if not, why."""
    return describe(model, _settings)


def verify(model: nn.Module) -> None:
    """Raise unless every attention module of the model runs cosFormer.

    `set_attn_implementation` may change the configuration at the top and leave parts of the model as
    they were, without an error (T5 on transformers 5.17): call this after it.
    """
    uses = report(model)
    if not uses:
        raise ValueError(f"{type(model).__name__} has no attention module that could run cosFormer.")
    idle = [use for use in uses if not use.runs]
    if idle:
        first_of = {use.detail: use.name for use in reversed(idle)}  # one name for each reason
        raise ValueError(
            f"{len(idle)} of {len(uses)} attention modules of {type(model).__name__} do not run cosFormer: "
            + "; ".join(f"{name}, as {why}" for why, name in first_of.items())
            + "."
        )


@contextmanager
def recorded_calls() -> Iterator[list[nn.Module]]:
    """The modules that call cosFormer inside the `with` block, in order, one entry for each call."""
    calls: list[nn.Module] = []
    _recordings.append(calls)
    try:
        yield calls
    finally:
        _recordings[:] = [kept for kept in _recordings if kept is not calls]


class _SelfAttention(threading.local):
    """The self-attention that ran last in this thread: configuration, layer, number of queries, position
    of the first of them, mask.

    The cross-attention of the same layer runs next, with the same queries, and transformers tells it
    nothing of their positions: in cached decoding each new token would seem to stand at 0.
    """

    last: tuple[Any, int | None, int, int, Tensor | None] | None = None


_self_attention = _SelfAttention()


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **asked: Any,
) -> tuple[Tensor, None]:
    """transformers' attention function: query (B, H, Tq, D); key and value (B, Hk, Tk, D), those of the
    cache before those of the call; mask [B, Tk] from `_key_mask`. Returns (B, Tq, H, D) and no weights."""
    refusals.check_host(module.config, _settings)
    # GPT-2 does not pass output_attentions on; the collector of its outputs has it.
    if not {"attentions", "cross_attentions"}.isdisjoint(_active_collector.get() or ()):
        asked["output_attentions"] = True
    refusals.check_demands(module, dropout, scaling, asked)
    tq, tk = query.shape[2], key.shape[2]
    refusals.check_mask(attention_mask, tk)
    first = getattr(module, "layer_idx", None) in (0, None)  # data is checked once per forward pass
    if is_cross(module):
        causal, offset = False, _position_from_self_attention(module, tq, attention_mask, first)
    else:
        causal, offset = _is_causal(module, is_causal), tk - tq
        positions = asked.get("position_ids")
        if first and attention_mask is None:
            refusals.check_positions(positions)
        elif first and attention_mask is not None:
            refusals.check_gaps(attention_mask)
            if not looks_across(module):  # there it may not be on the left at all
                config: Any = module.config
                refusals.check_padding(config.model_type, positions, attention_mask, tq)
        if offset != 0 and not causal:
            refusals.refuse(
                f"{type(module).__name__} is not causal and has {tq} queries for {tk} keys, and does not say "
                "where they stand to each other"
            )
        layer = getattr(module, "layer_idx", None)
        _self_attention.last = (module.config, layer, tq, offset, attention_mask)
    horizon, windows = _settings.reach_of(module, key.shape[1])
    refusals.check_horizon(max(offset + tq, tk), horizon)
    for calls in _recordings:
        calls.append(module)
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    out = cosformer_attention(
        q, k, v, causal=causal, horizon=horizon, windows=windows, key_mask=attention_mask,
        query_offset=offset, backend=_settings.backend,
    )  # fmt: skip
    return out, None


def _key_mask(
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    mask_function: Callable[..., Any] = causal_mask_function,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    use_vmap: bool = False,
    config: Any = None,
    **unused: Any,
) -> Tensor | None:
    """transformers' mask function: the padding mask [B, Tk] as it came, True = may be attended to.

    Causality is no part of it, the attention module states that; whatever else `mask_function` may ask
    for is no mask over keys.
    """
    refusals.check_host(config, _settings)
    causal, bidirectional = (mask_function is f for f in (causal_mask_function, bidirectional_mask_function))
    refusals.check_mask_function(causal or bidirectional, local_size, use_vmap)
    if causal:
        refusals.check_cache(q_length, kv_length, q_offset, attention_mask)
    return attention_mask


def _is_causal(module: nn.Module, asked: bool | None) -> bool:
    """As transformers reads it: what the call says, else what the module says."""
    causal = getattr(module, "is_causal", None)
    if causal is None and asked is None:
        refusals.refuse(f"{type(module).__name__} does not say whether it is causal (is_causal)")
    if asked and causal is False:
        refusals.refuse(
            f"is_causal=True was asked of {type(module).__name__}, which is made for both directions. Make "
            "the model a decoder (is_decoder=True)"
        )
    return bool(causal if asked is None else asked)


def _position_from_self_attention(module: nn.Module, queries: int, mask: Tensor | None, first: bool) -> int:
    """The position of the first query of cross-attention in its own text."""
    last, _self_attention.last = _self_attention.last, None
    layer = getattr(module, "layer_idx", None)
    if last is None or last[0] is not module.config or last[1:3] != (layer, queries):
        refusals.refuse(
            f"{type(module).__name__} is cross-attention and takes the positions of its queries from the "
            "self-attention of its own layer, which has to run cosFormer just before it"
        )
    *_, offset, own_mask = last
    if first:
        refusals.check_left_padding("decoder", own_mask)
        refusals.check_left_padding("encoder", mask)
    return offset
