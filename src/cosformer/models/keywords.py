"""Keywords that a head of ours takes because transformers passes them, and what is refused among them."""

import inspect
from difflib import get_close_matches
from typing import Any

import torch
from torch import Tensor, nn

from cosformer.ops.checks import readable

_BOUNDS = ("cu_seqlens", "cu_seq_lens_q", "cu_seq_lens_k")
PACKING = (*_BOUNDS, "seq_idx", "position_ids", "decoder_position_ids")
CACHE = ("past_key_values", "use_cache")
# What some head reads without naming it in its signature, and what transformers hands to every model.
_KNOWN = frozenset(
    (
        *PACKING, *CACHE, "encoder_hidden_states", "encoder_attention_mask", "output_hidden_states",
        "output_attentions", "return_dict", "shift_labels", "ignore_index", "num_items_in_batch",
        "max_length_q", "max_length_k", "token_type_ids", "cache_position",
    )
)  # fmt: skip
# Other libraries' words, and slips that letters alone do not tell from another word.
_MEANT = {
    **dict.fromkeys(
        ("attn_mask", "att_mask", "mask", "padding_mask", "key_mask", "key_padding_mask"), "attention_mask"
    ),
    **dict.fromkeys(("label", "label_ids", "lables", "lm_labels", "targets"), "labels"),
    **dict.fromkeys(("past", "past_key_value"), "past_key_values"),
}
_ALIKE = 0.85  # of get_close_matches: a letter or an underscore more or less, not another word


def packed_bounds(
    cu_seqlens: Tensor | None, position_ids: Tensor | None, kwargs: dict[str, Any]
) -> Tensor | None:
    """The bounds of packed documents, under our name or under those of transformers. What contradicts itself
    (where that can be read without waiting for a GPU), or tells of documents without where they begin, is
    refused."""
    given = {"cu_seqlens": cu_seqlens} | {name: kwargs.get(name) for name in _BOUNDS[1:]}
    for name, bounds in given.items():
        fits = isinstance(bounds, Tensor) and bounds.dim() == 1 and len(bounds) > 1
        if bounds is not None and not fits:
            raise ValueError(
                f"{name} must be a tensor [N + 1], the bounds of N documents in one row, but got "
                f"{list(bounds.shape) if isinstance(bounds, Tensor) else type(bounds).__name__}."
            )
    (first, bounds), *others = [x for x in given.items() if x[1] is not None] or [("", None)]
    for name, same in others:
        if bounds is not same and readable(bounds) and bounds.tolist() != same.tolist():
            raise ValueError(
                f"{first} and {name} must be the same bounds of documents where both are given, but got "
                f"{bounds.tolist()} and {same.tolist()}: leave one of them out."
            )
    documents = {first: bounds, "position_ids": position_ids, "seq_idx": kwargs.get("seq_idx")}
    told = {name: x for name, x in documents.items() if x is not None}
    if list(told) == ["seq_idx"]:
        raise ValueError(
            "seq_idx tells of packed documents, and needs where they begin beside it: give cu_seqlens, or "
            "position_ids that start at 0 with each document."
        )
    if len(told) > 1:
        told = {name: x for name, x in told.items() if _compares(name, x)}
    if len(told) > 1:
        rows = max(len(x) if x.dim() == 2 else 1 for x in told.values())
        (first, begins), *rest = [(name, _begins(name, x, rows)) for name, x in told.items()]
        for name, found in rest:
            if found != begins:
                raise ValueError(
                    f"{first} and {name} must tell of the same documents where both are given, but they "
                    f"begin at {begins} and {found}: leave one of them out."
                )
    return bounds


def _compares(name: str, given: Any) -> bool:
    """Whether the beginnings of documents can be read from what was given. Raises where it is no tensor of
    tokens: beside bounds it is used for nothing else."""
    if not (isinstance(given, Tensor) and given.dim() in (1, 2)):
        got = list(given.shape) if isinstance(given, Tensor) else type(given).__name__
        raise ValueError(f"{name} must be a tensor [B, T], a number for each token, but got {got}.")
    return given.numel() > 0 and readable(given)


def _begins(name: str, given: Tensor, rows: int) -> list[int]:
    """Where documents begin, in all rows laid end to end."""
    if name in _BOUNDS:
        return sorted(set(given.tolist()[:-1]) - {given[-1].item()})  # without empty ones
    given = given.expand(rows, -1) if given.dim() == 1 or len(given) == 1 else given
    new = torch.ones_like(given, dtype=torch.bool)
    new[:, 1:] = given.diff() != (1 if name == "position_ids" else 0)
    found: list[int] = new.flatten().nonzero().flatten().tolist()
    return found


def refuse_packing(head: nn.Module, kwargs: dict[str, Any]) -> None:
    """For heads with one output per row."""
    for name in PACKING[:-1]:
        if kwargs.get(name) is not None:
            raise ValueError(
                f"{name} must be left out: {type(head).__name__} reads one sequence a row; pad the batch and "
                "give attention_mask."
            )


def refuse_unread(head: nn.Module, kwargs: dict[str, Any], *more: str) -> None:
    """For heads without a cache or without cross-attention: neither is dropped without a word. Nor is a name
    that is nearly one of the head's arguments; other unknown ones are, as transformers does."""
    for name in ("encoder_hidden_states", "encoder_attention_mask", *more):
        given = kwargs.get(name)
        if given is not None and given is not False:
            raise ValueError(f"{name} must be left out: {type(head).__name__} does not read it.")
    refuse_misspelt(head, kwargs)


def refuse_misspelt(head: nn.Module, kwargs: dict[str, Any]) -> None:
    """None asks for nothing, whatever it is called. A graph compares no letters."""
    for name, value in kwargs.items():
        if name in _KNOWN or value is None:
            continue
        meant = _MEANT.get(name)
        if meant is None and not torch.compiler.is_compiling():
            known = [*inspect.signature(type(head).forward).parameters, *_KNOWN]
            meant = next(iter(get_close_matches(name.lower(), known, 1, _ALIKE)), None)
        if meant is not None:
            raise TypeError(f"{type(head).__name__} has no argument {name!r}: do you mean {meant!r}?")
