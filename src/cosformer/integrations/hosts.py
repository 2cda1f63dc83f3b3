"""What the configuration of a host model says: whether cosFormer can be used, and the horizon and windows."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import nn

from cosformer.ops.checks import positive
from cosformer.ops.windows import check_windows, public

NAME = "cosformer"
# Model types whose attention was reviewed and is tested: they need nothing that cosFormer cannot do.
VERIFIED = ("bart", "bert", "gpt2", "llama", "roberta", "vit")


class Reach(NamedTuple):
    """How far the heads of an attention module see."""

    horizon: float | None
    windows: tuple[int | None, ...] | None


@dataclass(frozen=True)
class Settings:
    """What `enable` was told: M and windows for every model that does not state its own, the backend of
    the operator, and further model types to accept."""

    horizon: float | None = None
    backend: str = "auto"
    also: tuple[str, ...] = ()
    windows: tuple[int | None, ...] | None = None

    def refusal(self, config: Any) -> str | None:
        """Why cosFormer cannot be right in models with this configuration; None if it can."""
        kind = getattr(config, "model_type", None)
        if getattr(config, "relative_attention_num_buckets", None) is not None:
            return (
                f"models of type {kind!r} add a learned position bias to every score, and linear attention "
                "has no scores to add it to. Use another model, or another attn_implementation"
            )
        if kind not in VERIFIED and kind not in self.also:
            return (
                f"models of type {kind!r} are not among those it was verified in ({', '.join(VERIFIED)}). "
                f"enable(also=[{kind!r}]) accepts them; then compare padded with unpadded batches and "
                "cached with uncached logits before trusting the results"
            )
        return None

    def windows_of(self, module: nn.Module, kv_heads: int | None = None) -> tuple[int | None, ...] | None:
        """The windows of an attention module's key-value heads: what its configuration says of cosFormer,
        else what `enable` was told. Cross-attention has none: positions in two texts do not correspond."""
        if is_cross(module):
            return None
        stated = getattr(module.config, "cosformer_windows", None)
        return public(check_windows(self.windows if stated is None else stated, kv_heads))

    def reach_of(self, module: nn.Module, kv_heads: int | None = None) -> Reach:
        """Horizon and windows of an attention module; the horizon is None where every head has a window."""
        windows = self.windows_of(module, kv_heads)
        if windows is not None and None not in windows:
            return Reach(None, windows)
        return Reach(self.horizon_of(module.config), windows)

    def horizon_of(self, config: Any) -> float:
        """M: what the configuration says of cosFormer, else what `enable` was told, else the greatest
        length that the model was built for. Never the length of a call: cached decoding would see
        another M at each step."""
        stated = getattr(config, "cosformer_horizon", None)
        if stated is not None:
            return positive("cosformer_horizon", stated)
        if self.horizon is not None:
            return self.horizon
        length = getattr(config, "max_position_embeddings", None)
        if length is None:
            length = _patches(config)
        if length is None:
            raise ValueError(
                f"{type(config).__name__} states no greatest length (max_position_embeddings, or image_size "
                "and patch_size) to take the horizon from: set config.cosformer_horizon, or call "
                "enable(horizon=...)."
            )
        return positive("max_position_embeddings", length)


def is_cross(module: nn.Module) -> bool:
    """Whether an attention module looks from one sequence at another. There is no common attribute:
    GPT-2 has `is_cross_attention`, BERT a class of its own, and BART's is a decoder's, yet not causal."""
    stated = getattr(module, "is_cross_attention", None)
    if isinstance(stated, bool):
        return stated
    decoder, causal = getattr(module, "is_decoder", False), getattr(module, "is_causal", False)
    return "Cross" in type(module).__name__ or (bool(decoder) and not causal)


def looks_across(module: nn.Module) -> bool:
    """Whether self-attention is in a layer that has cross-attention too."""
    config = module.config
    decodes = getattr(config, "is_encoder_decoder", False) and getattr(module, "is_decoder", False)
    return decodes or getattr(config, "add_cross_attention", False)


def _patches(config: Any) -> int | None:
    """Tokens of an image: its patches and one for the class."""
    image, patch = getattr(config, "image_size", None), getattr(config, "patch_size", None)
    if image is None or patch is None:
        return None
    height, width = (image, image) if isinstance(image, int) else image
    rows, columns = (patch, patch) if isinstance(patch, int) else patch
    return int(height // rows) * int(width // columns) + 1
