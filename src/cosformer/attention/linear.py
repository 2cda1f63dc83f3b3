"""The Linear Transformer (Katharopoulos et al., ICML 2020, arXiv:2006.16236, equations 7 and 9):

w_ij = phi(q_i) . phi(k_j),   phi(x) = elu(x) + 1
"""

import torch.nn.functional as F
from torch import Tensor

from cosformer.attention.linear_base import LinearAttention, linear_traits
from cosformer.attention.registry import register


@register("linear")
class Linear(LinearAttention):
    """Args:
    eps: lower bound of the denominator.
    """

    traits = linear_traits("Transformers are RNNs, arXiv:2006.16236")

    def query_features(self, q: Tensor) -> Tensor:
        return F.elu(q) + 1

    def key_features(self, k: Tensor) -> Tensor:
        return F.elu(k) + 1

    def before_relu(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return _rounded_once(q), _rounded_once(k)


def _rounded_once(x: Tensor) -> Tensor:
    """phi(x). In half precision elu(x) + 1 loses it in the rounding of elu(x), which is close to -1.
    A hidden key, which may be NaN, keeps its gradient of 0: ReLU hands it on, and the bound stops that of
    exp, 0 times NaN."""
    return x.relu() + x.clamp(max=0).exp()
