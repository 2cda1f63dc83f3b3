"""A small network for each head, which some attentions learn beside the projections of the model."""

import torch
from torch import Tensor, nn


class HeadwiseNetwork(nn.Module):
    """W2 ReLU(W1 x + b1) + b2, with weights for each head: x [B, Hk, T, D] to [B, Hk, T, outputs]."""

    def __init__(self, heads: int, size: int, outputs: int):
        super().__init__()
        self.first = nn.Parameter(torch.empty(heads, size, size))
        self.first_bias = nn.Parameter(torch.empty(heads, 1, size))
        self.second = nn.Parameter(torch.empty(heads, outputs, size))
        self.second_bias = nn.Parameter(torch.empty(heads, 1, outputs))

    def reset_parameters(self) -> None:
        for weight in (self.first, self.second):
            nn.init.normal_(weight, std=weight.shape[-1] ** -0.5)
        for bias in (self.first_bias, self.second_bias):
            nn.init.zeros_(bias)

    def forward(self, x: Tensor, outputs: int) -> Tensor:
        """Only the first `outputs` outputs."""
        hidden = (x @ self.first.mT + self.first_bias).relu()
        return hidden @ self.second[:, :outputs].mT + self.second_bias[..., :outputs]
