"""A gate on the output of attention, from the layer's input: out * act(W x + b)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

KINDS = ("silu", "sigmoid")
# silu(1.2785) = 1: the output passes as it came. A sigmoid begins at 1/2 everywhere, where it learns fastest.
_INITIAL_BIAS = {"silu": 1.2785, "sigmoid": 0.0}


class OutputGate(nn.Module):
    """What the output of attention is multiplied by, [B, T, size] from x [B, T, size].

    It has a bias whatever other projections have: small weights then leave the output nearly as it was,
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
        # Not the projection's: a model draws the biases of all projections as zeros.
        self.bias = nn.Parameter(torch.empty(size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """The bias alone: the weights are drawn as those of every projection."""
        nn.init.constant_(self.bias, _INITIAL_BIAS[self.kind])

    def forward(self, x: Tensor) -> Tensor:
        gate = self.proj(x)
        gate = gate + self.bias.to(gate.dtype)  # which autocast leaves in float32
        return F.silu(gate) if self.kind == "silu" else gate.sigmoid()

    def extra_repr(self) -> str:
        return self.kind
