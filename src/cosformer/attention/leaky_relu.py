"""LeakyReLU features, an ablation of the paper's Table 1 (Qin et al., ICLR 2022, arXiv:2202.08791):

w_ij = LeakyReLU(q_i) . LeakyReLU(k_j),   o_i = sum_j w_ij v_j / max(|sum_j w_ij|, eps)

Weights may be negative, which is what the ablation is about, and so may their sum. The paper normalises by
the sum and says nothing of sums near zero; here the absolute sum is bounded below by eps = 1,
as in the mLSTM (Beck et al., 2024, arXiv:2405.04517), without which a row can be divided by almost nothing.
Wherever the sum is greater than 1 this is the paper's equation.
"""

import torch.nn.functional as F
from torch import Tensor

from cosformer.attention.linear_base import LinearAttention, linear_traits
from cosformer.attention.registry import register
from cosformer.ops.checks import positive


@register("leaky_relu")
class LeakyRelu(LinearAttention):
    """Args:
    slope: of the negative half.
    eps: lower bound of the absolute denominator.
    """

    traits = linear_traits("cosFormer: Rethinking Softmax in Attention (Table 1), arXiv:2202.08791")

    def __init__(self, *, slope: float = 0.01, eps: float = 1.0):
        super().__init__(eps=eps)
        self.slope = positive("slope", slope)

    def query_features(self, q: Tensor) -> Tensor:
        return F.leaky_relu(q, self.slope)

    def key_features(self, k: Tensor) -> Tensor:
        return F.leaky_relu(k, self.slope)
