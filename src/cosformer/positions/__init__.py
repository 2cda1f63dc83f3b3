"""Positions under one small registry: one file is one kind."""

from cosformer.positions.base import Position
from cosformer.positions.learned import LearnedPosition
from cosformer.positions.none import NoPosition
from cosformer.positions.registry import build, fit, names, parameters, register
from cosformer.positions.rotary import RotaryPosition
from cosformer.positions.sinusoidal import SinusoidalPosition
from cosformer.positions.stochastic import StochasticPosition

__all__ = [
    "LearnedPosition",
    "NoPosition",
    "Position",
    "RotaryPosition",
    "SinusoidalPosition",
    "StochasticPosition",
    "build",
    "fit",
    "names",
    "parameters",
    "register",
]
