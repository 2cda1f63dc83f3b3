"""The feed-forward layers of a block."""

import torch.nn.functional as F
from torch import Tensor, nn

KINDS = ("gelu", "gated")


class FeedForward(nn.Module):
    """Two layers with a non-linearity between them.

        gelu   W2 GELU(W1 x)                    (Vaswani et al., 2017; Hendrycks and Gimpel, 2016)
        gated  W2 (SiLU(Wg x) * W1 x)           (SwiGLU: Shazeer, 2020, arXiv:2002.05202)

    Args:
        hidden_size: width of the tokens.
        intermediate_size: width between the layers.
        kind: "gelu" or "gated".
        bias: of the layers.
    """

    def __init__(self, hidden_size: int, intermediate_size: int, *, kind: str = "gelu", bias: bool = True):
        super().__init__()
        if kind not in KINDS:
            raise ValueError(f"kind of feed-forward must be one of {', '.join(KINDS)}, but got {kind!r}.")
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=bias)
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=bias) if kind == "gated" else None
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        up = self.up_proj(x)
        inner = F.gelu(up) if self.gate_proj is None else F.silu(self.gate_proj(x)) * up
        return self.down_proj(inner)
