"""What transformers' tests leave out of a model by themselves, and may leave out of ours: patterns of their
reasons. Run beside ours, those of Mamba2 or RecurrentGemma are left out for the same, but for the last two.
Decorators that ask for hardware or packages (`test requires ...`, `test is slow`) are not among them."""

import re

LEFT_OUT = (
    # The weights are never formed (`has_attentions = False`, as their own tests say).
    "does not (support|output) (output_)?attentions", "don't support sdpa",
    # Positions are ours: no field of transformers scales them, and there is no table to resize from outside.
    "RoPE", "does not have position embeddings",
    # Hidden states are returned by the model, not captured by hooks of transformers.
    "No usage of the `capture_outputs` decorator", "Cannot capture hidden states",
    # No experts, plans of tensor parallelism, configurations inside others, or kept precisions.
    "grouped_mm", "sparse experts", "output_router_logits", "TP plan", "not composite", "No subconfigs",
    "_keep_in_fp32_modules", "No conversion found",
    # It goes by the year of a file, and transformers 5.17 has no switch for files that name none.
    "Not a prioritized model for now",
    # A test of another kind of head, for classes that have none of it.
    "No (decoder-only|sequence-to-sequence) language modeling head to check",
)  # fmt: skip


def may_be(reason: str) -> bool:
    return any(re.search(pattern, reason) for pattern in LEFT_OUT)
