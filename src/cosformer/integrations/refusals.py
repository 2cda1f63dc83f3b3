"""What cosFormer cannot do for a host model, each with its sentence. No argument is ignored silently."""

from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from cosformer.integrations.hosts import NAME, Settings

PACKED = (
    "documents packed into one row, whose bounds do not reach the attention: one would see another. Pad them "
    "into rows of their own, with an attention_mask"
)
WINDOW = (
    "a window (sliding or chunked), and sums over all keys cannot leave the far ones out. Set "
    "sliding_window=None in the configuration if full attention is meant"
)
# Passed down by the models for other purposes; attention does not use them.
_HARMLESS = {
    "cache_position", "labels", "logits_to_keep", "num_items_in_batch", "output_hidden_states",
    "output_router_logits", "past_key_values", "position_embeddings", "position_ids", "return_dict",
    "use_cache",
}  # fmt: skip
_COUNT_COLUMNS = ("bart", "bert")  # from the first one, where they are given no position_ids
_REASONS = {
    "output_attentions": "the matrix of weights (output_attentions), which linear attention never forms. "
    'Use attn_implementation="eager" to look at weights',
    "position_bias": "a bias on the scores (position_bias), and linear attention has no scores to add it to",
    "softcap": "a bound on the scores (softcap), and linear attention has no scores",
    "s_aux": "attention sinks (s_aux), which are extra scores, and linear attention has no scores",
    "head_mask": "weights on the heads (head_mask), which are not applied here. Leave it out",
    "sliding_window": WINDOW,
    "cache": "a paged cache (continuous batching). Use generate()",
} | dict.fromkeys(("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx"), PACKED)


def refuse(reason: str) -> NoReturn:
    raise ValueError(f'attn_implementation="{NAME}" cannot serve this call: {reason}.')


def check_host(config: Any, settings: Settings) -> None:
    reason = settings.refusal(config)
    if reason is not None:
        refuse(reason)


def check_demands(module: nn.Module, dropout: float, scaling: float | None, asked: dict[str, Any]) -> None:
    """Checks the arguments of a call beside query, key, value and mask."""
    kind = type(module).__name__
    if dropout > 0:
        refuse(
            f"{kind} is in training with attention dropout {dropout:g}, and linear attention has no weights "
            "to drop. Set it to 0 in the configuration (attention_probs_dropout_prob, attention_dropout or "
            "attn_pdrop), or call model.eval()"
        )
    if scaling is not None and not scaling > 0:
        refuse(f"{kind} scales its scores by {scaling}, and only a positive factor cancels in the ratio")
    for name, value in asked.items():
        if name in _HARMLESS or value is None or value is False:
            continue
        if name in _REASONS:
            refuse(f"{kind} asks for {_REASONS[name]}")
        refuse(f"{kind} was given {name!r}, of which cosFormer knows nothing. Leave it out")


def check_mask(mask: Tensor | None, keys: int) -> None:
    """Only padding can be masked, [B, Tk]; a mask over pairs of query and key cannot be applied to sums."""
    if mask is None:
        return
    if mask.dim() != 2 or mask.dtype != torch.bool:
        refuse(
            f"a mask of shape {list(mask.shape)} and type {mask.dtype} came, and only padding can be masked. "
            "Give attention_mask as [batch, length], 1 for tokens and 0 for padding"
        )
    if mask.shape[1] != keys:
        refuse(
            f"attention_mask covers {mask.shape[1]} positions, and there are {keys} keys. It has to cover "
            "what is in the cache and what is new"
        )


def check_mask_function(plain: bool, local_size: int | None, use_vmap: bool) -> None:
    """`plain`: the model asks for a causal or a bidirectional mask, and for nothing on top of it."""
    if plain:
        return
    if local_size is not None:
        refuse(f"the model asks for {WINDOW} (it is {local_size} wide)")
    if use_vmap:
        refuse("the model brings a mask function of its own, and only padding can be masked")
    if torch.compiler.is_compiling():
        refuse(
            "under torch.compile, transformers takes every row without attention_mask for packed documents. "
            "Pass an attention_mask, all ones where nothing is padded"
        )
    refuse(f"the model asks for {PACKED}")


def check_cache(q_length: int, kv_length: int, q_offset: int | Tensor, mask: Tensor | None) -> None:
    """The keys are those of the past and of this call, without empty places after them."""
    # A static cache in use counts in tensors.
    if isinstance(q_offset, Tensor) or kv_length != q_offset + q_length:
        refuse(
            f"there are places for {kv_length} keys and not all of them are filled: a static cache, or an "
            "attention_mask longer than the text. Use the default, dynamic cache, and a mask that covers "
            "what is in it and what is new"
        )
    check_mask(mask, kv_length)


def check_positions(position_ids: Tensor | None) -> None:
    """Positions that restart, where there is no mask, are packed documents."""
    if position_ids is None or position_ids.shape[-1] == 1:
        return
    _insist(
        (position_ids.diff(dim=-1) == 1).all(),
        f"position_ids do not run on one by one, which without an attention_mask means {PACKED}",
    )


def check_gaps(mask: Tensor) -> None:
    """Padding lies at the ends of a row: a distance counts columns."""
    begins = (mask[:, 1:] & ~mask[:, :-1]).sum(1) + mask[:, 0]
    _insist(
        (begins <= 1).all(),
        "attention_mask has padding between the tokens of a row, and the distance between two tokens counts "
        "it. Pad at the ends of a row",
    )


def check_padding(kind: str, position_ids: Tensor | None, mask: Tensor, queries: int) -> None:
    """Padding has no position: embeddings of positions, and rectified queries and keys under rotary ones,
    know where they stand. `kind`: the model's type."""
    if position_ids is None and kind not in _COUNT_COLUMNS:
        return
    counted = mask.new_ones(len(mask))  # whether positions are as if padding were text
    if position_ids is not None:
        if position_ids.shape[-1] != queries:
            return
        column = torch.arange(mask.shape[1] - queries, mask.shape[1], device=mask.device)
        counted = ((position_ids == column) | ~mask[:, -queries:]).all(1)
    right = "position_ids = attention_mask.cumsum(-1) - 1, as generate() does"
    if kind == "roberta":
        right = "no position_ids, as RoBERTa leaves padding out itself"
    _insist(
        (mask[:, 0] | ~mask.any(1) | ~counted).all(),
        "rows are padded on the left, and positions count the padding: the output would depend on it. Pad "
        f"on the right, or give {right}",
    )


def check_left_padding(side: str, mask: Tensor | None) -> None:
    """Between two texts the distance i - j counts from both their starts: padding there would shift it."""
    if mask is not None:
        _insist(
            (mask[:, 0] | ~mask.any(1)).all(),
            f"rows of the {side} are padded on the left, and cross-attention counts the distance between two "
            "texts from their starts. Pad them on the right",
        )


def check_horizon(length: int, horizon: float | None) -> None:
    """`horizon` is None where every head has a window: the text has no bound."""
    if horizon is not None and length - 1 > horizon:
        refuse(
            f"the text has reached {length} positions and the horizon is {horizon:g}, beyond which the "
            "weights turn negative. Set config.cosformer_horizon to the greatest length that the text may "
            "reach, or call enable(horizon=...)"
        )


def _insist(condition: Tensor, reason: str) -> None:
    """Checks a condition on data; in a compiled graph, when it runs."""
    if torch.compiler.is_compiling():
        torch._assert_async(condition, f'attn_implementation="{NAME}" cannot serve this call: {reason}.')
    elif not bool(condition):
        refuse(reason)
