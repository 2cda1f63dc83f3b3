"""Attention mechanisms under one registry: one file is one mechanism, one class and one registration."""

from cosformer.attention.base import Attention, State
from cosformer.attention.cosformer import Cosformer
from cosformer.attention.identity import Identity
from cosformer.attention.leaky_relu import LeakyRelu
from cosformer.attention.linear import Linear
from cosformer.attention.performer import Performer
from cosformer.attention.registry import build, fit, names, parameters, register, traits
from cosformer.attention.relu import Relu
from cosformer.attention.rfa import Rfa
from cosformer.attention.softmax import Softmax
from cosformer.attention.traits import Traits

__all__ = [
    "Attention",
    "Cosformer",
    "Identity",
    "LeakyRelu",
    "Linear",
    "Performer",
    "Relu",
    "Rfa",
    "Softmax",
    "State",
    "Traits",
    "build",
    "fit",
    "names",
    "parameters",
    "register",
    "traits",
]
