"""A gate on the output of attention, from the layer's input: out * act(W x + b)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

KINDS = ("silu", "sigmoid")
# silu(1.2785) = 1: the gate starts as the identity. A sigmoid starts at 1/2, where its slope is largest.
_INITIAL_BIAS = {"silu": 1.2785, "sigmoid": 0.0}


class OutputGate(nn.Module):
    """The factor of the output of attention, [B, T, size] from x [B, T, size].

    It has a bias even where projections have none: with small weights, the output is then nearly unchanged,
    and not nearly 0 (silu).

    Args:
        size: width of the layer's input and of the output.
        kind: "silu" (Hua et al., 2022, arXiv:2202.10447) or "sigmoid".
    """

    def __init__(self, size: int, kind: str = "silu"):
        super().__init__()
        if kind not in KINDS:
            raise ValueError(f"output_gate must be None or one of {', '.join(KINDS)}, but got {kind!r}.")
        self.kind, self.proj = kind, nn.Linear(size, size, bias=False)
        # Not that of the projection: a model initialises biases of projections with zeros.
        self.bias = nn.Parameter(torch.empty(size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """The bias alone: the weights are initialised as those of every projection."""
        nn.init.constant_(self.bias, _INITIAL_BIAS[self.kind])

    def forward(self, x: Tensor) -> Tensor:
        gate = self.proj(x)
        gate = gate + self.bias.to(gate.dtype)  # autocast leaves the bias in float32
        return F.silu(gate) if self.kind == "silu" else gate.sigmoid()

    def extra_repr(self) -> str:
        return self.kind
