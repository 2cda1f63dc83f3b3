"""Checks that several places share; each error says what was wrong, what was expected, what to do."""

import math
from numbers import Integral, Real
from typing import Any

import torch

WIDE = (torch.float32, torch.float64)
PLAIN = (torch.Tensor, torch.nn.Parameter)
_TRACERS = (torch._C._TorchDispatchModeKey.PROXY, torch._C._TorchDispatchModeKey.FAKE)


def readable(x: torch.Tensor) -> bool:
    """Whether the values of a tensor can be looked at: on a GPU that would wait for the device; in a graph,
    in a fake tensor or under the transforms of torch.func there are none."""
    if torch.compiler.is_compiling():
        return False
    traced = any(torch._C._get_dispatch_mode(key) is not None for key in _TRACERS)
    traced = traced or torch._C._are_functorch_transforms_active()
    return x.device.type == "cpu" and type(x) in PLAIN and not traced


def flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, but got {value!r}.")
    return value


def positive(name: str, value: Any) -> float:
    """A positive finite number as a float; symbolic sizes pass (their checks are guards)."""
    if isinstance(value, torch.SymInt | torch.SymFloat):
        return torch.sym_float(value)
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, but got {value!r} of type {type(value).__name__}.")
    number = float(value) if value < 10**300 else math.inf
    if not 0 < number < math.inf:  # refuses NaN too
        raise ValueError(f"{name} must be a positive finite number, but got {value}.")
    return number


def epsilon(value: Any) -> float:
    eps = positive("eps", value)
    if eps < torch.finfo(torch.float32).tiny:
        raise ValueError(f"eps must be a normal float32 number, at least 1.2e-38, but got {value}.")
    return eps


def positive_int(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise ValueError(f"{name} must be a positive int, but got {value!r}.")
    return int(value)


def within_horizon(distance: int, horizon: float, position: int) -> None:
    """No query may be further than M from a key it sees: there the weights would turn negative."""
    if distance > horizon:
        raise ValueError(
            f"horizon {horizon:g} is too small: the query at position {position} would stand {distance} away "
            f"from a key, and beyond the horizon the weights turn negative. Give a horizon of at "
            f"least {distance}."
        )
