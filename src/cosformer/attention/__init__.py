"""Attention mechanisms under one registry: one file is one mechanism, one class and one registration."""

from cosformer.attention.base import Attention, State
from cosformer.attention.cosformer import Cosformer
from cosformer.attention.registry import build, fit, names, parameters, register, traits
from cosformer.attention.softmax import Softmax
from cosformer.attention.traits import Traits

__all__ = [
    "Attention",
    "Cosformer",
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
