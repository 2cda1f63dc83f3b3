"""No features at all, an ablation of the paper's Table 1 (Qin et al., ICLR 2022, arXiv:2202.08791):

w_ij = q_i . k_j,   o_i = sum_j w_ij v_j / max(|sum_j w_ij|, eps)

Half of the weights are negative; for the bound on their sum see leaky_relu.py.
"""

from torch import Tensor

from cosformer.attention.linear_base import LinearAttention, linear_traits
from cosformer.attention.registry import register


@register("identity")
class Identity(LinearAttention):
    """Args:
    eps: lower bound of the absolute denominator.
    """

    traits = linear_traits("cosFormer: Rethinking Softmax in Attention (Table 1), arXiv:2202.08791")

    def __init__(self, *, eps: float = 1.0):
        super().__init__(eps=eps)

    def query_features(self, q: Tensor) -> Tensor:
        return q

    def key_features(self, k: Tensor) -> Tensor:
        return k
