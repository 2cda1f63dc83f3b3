"""Modules: multi-head attention around any mechanism, feed-forward, norm, and the block of them."""

from cosformer.nn.attention import CosformerAttention
from cosformer.nn.block import Block, BlockOutput, CrossAttentionState
from cosformer.nn.chunked_loss import chunked_cross_entropy
from cosformer.nn.convolution import ShortConvolution
from cosformer.nn.feedforward import FeedForward
from cosformer.nn.gate import OutputGate
from cosformer.nn.multihead import MultiheadAttention
from cosformer.nn.norm import build_norm
from cosformer.nn.one_vs_each import one_vs_each_loss
from cosformer.nn.state import ConvolvedState

__all__ = [
    "Block",
    "BlockOutput",
    "ConvolvedState",
    "CosformerAttention",
    "CrossAttentionState",
    "FeedForward",
    "MultiheadAttention",
    "OutputGate",
    "ShortConvolution",
    "build_norm",
    "chunked_cross_entropy",
    "one_vs_each_loss",
]
