"""ReLU features without the cosine: the ablation that isolates the paper's re-weighting
(Qin et al., ICLR 2022, arXiv:2202.08791, Table 1 and the ablation of the re-weighting):

w_ij = ReLU(q_i) . ReLU(k_j)
"""

from torch import Tensor

from cosformer.attention.linear_base import LinearAttention, linear_traits
from cosformer.attention.registry import register


@register("relu")
class Relu(LinearAttention):
    """Args:
    eps: lower bound of the denominator.
    """

    traits = linear_traits("cosFormer: Rethinking Softmax in Attention (Table 1), arXiv:2202.08791")

    def query_features(self, q: Tensor) -> Tensor:
        return q.relu()

    def key_features(self, k: Tensor) -> Tensor:
        return k.relu()
