"""Attention mechanisms under one registry: one file is one mechanism, one class and one registration."""

from cosformer.attention.base import Attention, State
from cosformer.attention.bigbird import BigBird
from cosformer.attention.cosformer import Cosformer
from cosformer.attention.identity import Identity
from cosformer.attention.leaky_relu import LeakyRelu
from cosformer.attention.linear import Linear
from cosformer.attention.linformer import Linformer
from cosformer.attention.local import Local
from cosformer.attention.longformer import Longformer
from cosformer.attention.performer import Performer
from cosformer.attention.reformer import Reformer
from cosformer.attention.registry import build, fit, names, parameters, register, traits
from cosformer.attention.relu import Relu
from cosformer.attention.rfa import Rfa
from cosformer.attention.sinkhorn import Sinkhorn
from cosformer.attention.softmax import Softmax
from cosformer.attention.sparse import Sparse
from cosformer.attention.synthesizer import Synthesizer
from cosformer.attention.traits import Traits

__all__ = [
    "Attention",
    "BigBird",
    "Cosformer",
    "Identity",
    "LeakyRelu",
    "Linear",
    "Linformer",
    "Local",
    "Longformer",
    "Performer",
    "Reformer",
    "Relu",
    "Rfa",
    "Sinkhorn",
    "Softmax",
    "Sparse",
    "State",
    "Synthesizer",
    "Traits",
    "build",
    "fit",
    "names",
    "parameters",
    "register",
    "traits",
]
