"""Functions on tensors [B, T, H, D]: no modules, no configuration."""

from cosformer.ops.backends import BackendStatus, backends
from cosformer.ops.decoding import decode_step
from cosformer.ops.interface import cosformer_attention
from cosformer.ops.state import CosformerState

__all__ = ["BackendStatus", "CosformerState", "backends", "cosformer_attention", "decode_step"]
