"""The models whose decoding is compared, and their caches filled to any length without computing it.

What a token costs depends on the size of the cache and not on what is in it, so caches are filled with
random numbers; that cached decoding is right is shown first, on short texts.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from benchmarks.timing import clock
from cosformer.attention.kv import KeyValueState
from cosformer.models import CosformerCache, CosformerConfig, CosformerForCausalLM
from cosformer.ops import CosformerState

CONTENDERS = {
    "cosformer": "cosFormer, a state a layer",
    "softmax": "the same model with softmax, its keys and values",
    "llama": "transformers' Llama, DynamicCache",
}


@dataclass(frozen=True)
class Sizes:
    """Of the models; the same for all."""

    hidden: int = 256
    layers: int = 4
    heads: int = 4
    vocabulary: int = 264

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads

    def cache_bytes(self, name: str, batch: int, context: int) -> int:
        """What a cache will take, from its shapes (float32)."""
        per_row = (
            2 * self.head_dim * (self.head_dim + 1) if name == "cosformer" else 2 * context * self.head_dim
        )
        return 4 * batch * self.layers * self.heads * per_row


def build(name: str, sizes: Sizes, longest: int, device: torch.device) -> Any:
    """A model with random weights, in evaluation mode."""
    torch.manual_seed(0)
    common: dict[str, Any] = {
        "vocab_size": sizes.vocabulary,
        "hidden_size": sizes.hidden,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads,
        "intermediate_size": 4 * sizes.hidden,
        "max_position_embeddings": longest,
        "tie_word_embeddings": True,
        "initializer_range": 0.25,
    }
    if name == "llama":
        made: Any = LlamaForCausalLM(LlamaConfig(**common, attn_implementation="sdpa"))
    else:
        made = CosformerForCausalLM(CosformerConfig.paper(**common, attention=name, position="rotary"))
    return made.to(device).eval()


def filled(name: str, model: Any, sizes: Sizes, batch: int, context: int) -> Any:
    """A cache after `context` tokens."""
    device, shape = model.device, (batch, sizes.heads, context, sizes.head_dim)
    if name == "llama":
        cache = DynamicCache(config=model.config)
        for layer in range(sizes.layers):
            keys, values = (torch.randn(shape, device=device) for _ in range(2))
            cache.update(keys, values, layer)
        return cache
    ours = CosformerCache(model.config)
    at = torch.full((batch,), context, device=device)
    for entry in ours.layers:
        if name == "cosformer":
            state: Any = CosformerState(
                torch.rand(batch, sizes.heads, 2, sizes.head_dim, sizes.head_dim, device=device) * context,
                torch.rand(batch, sizes.heads, 2, sizes.head_dim, device=device) * context,
                at,
                context,
                float(model.config.horizon),
            )
        else:
            keys, values = (torch.randn(shape, device=device).transpose(1, 2) for _ in range(2))
            state = KeyValueState(keys, values, None, at, context)
        entry.put(state, None, context)
    return ours


def cache_bytes(cache: Any) -> int:
    if isinstance(cache, CosformerCache):
        return cache.nbytes
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)


class Decoder:
    """Tokens one at a time behind a cache of one length; `rewind` brings it back to that length."""

    def __init__(self, name: str, model: Any, sizes: Sizes, batch: int, context: int):
        self.model, self.context = model, context
        self.cache = filled(name, model, sizes, batch, context)
        self.kept = self.cache.snapshot() if isinstance(self.cache, CosformerCache) else None
        self.token = torch.zeros(batch, 1, dtype=torch.int64, device=model.device)

    def step(self) -> None:
        with torch.inference_mode():
            logits = self.model(self.token, past_key_values=self.cache, use_cache=True).logits
            self.token = logits[:, -1:].argmax(-1)

    def rewind(self) -> None:
        if self.kept is not None:
            self.cache.restore(self.kept)
        else:
            self.cache.crop(self.context - self.cache.get_seq_length())

    def times(self, tokens: int) -> list[float]:
        """Seconds of each of the tokens after the first, which is a warm-up."""
        self.step()
        found = clock(self.model.device, self.step, tokens)
        self.rewind()
        return found


def disagreement(model: Any, length: int = 192, batch: int = 2) -> float:
    """Largest difference of cached and uncached logits, relative to the largest logit."""
    ids = torch.randint(0, 200, (batch, length), device=model.device)
    make: Callable[[], Any] = (
        (lambda: CosformerCache(model.config))
        if isinstance(model, CosformerForCausalLM)
        else (lambda: DynamicCache(config=model.config))
    )
    with torch.inference_mode():
        whole: Tensor = model(ids, use_cache=False).logits
        cache = make()
        parts = [model(ids[:, : length // 2], past_key_values=cache, use_cache=True).logits]
        parts += [
            model(ids[:, t : t + 1], past_key_values=cache, use_cache=True).logits
            for t in range(length // 2, length)
        ]
    return float((torch.cat(parts, 1) - whole).abs().max() / whole.abs().max())
