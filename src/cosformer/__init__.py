"""cosFormer: exact linear attention with cosine re-weighting (Qin et al., ICLR 2022)."""

from cosformer import attention, positions
from cosformer.nn import CosformerAttention
from cosformer.ops import CosformerState, backends, cosformer_attention

__version__ = "0.1.0"
__all__ = [
    "CosformerAttention",
    "CosformerState",
    "attention",
    "backends",
    "cosformer_attention",
    "positions",
]
