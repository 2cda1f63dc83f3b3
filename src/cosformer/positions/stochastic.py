"""Stochastic positional encoding (Liutkus et al., ICML 2021, arXiv:2105.08399): relative positions for
attention that never forms its weights.

Each feature d of a head gets noise that is correlated over positions, one process for queries and one for
keys, and products of the two give back a kernel of the distance:

    q^_r(m) = R^(-1/2) sum_d q_d Qbar_d(m, r),   k^_r(n) = R^(-1/2) sum_d k_d Kbar_d(n, r),   r = 1 .. R
    E[q^(m) . k^(n)] = sum_d q_d k_d P_d(m - n)

    sine   P_d(t) = sum_c gain_c^2 cos(2 pi f_c t + phase_c)
    conv   P_d(t) = sum_p a_p b_{p + t}, filters a and b over white noise

The noise is sampled once (cached tokens must see the noise that their neighbours saw), and again by
`cosformer.random_features.resample`; the paper's optional gate is left out.
"""

import math

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from cosformer.ops.checks import positive_int
from cosformer.positions.base import Position, Rotate
from cosformer.positions.registry import register
from cosformer.random_features import RandomFeatures, interval

KINDS = ("sine", "conv")
_NUMBERS_AT_ONCE = 2**24  # elements of noise that are gathered at a time


@register("stochastic")
class StochasticPosition(Position, RandomFeatures):
    """Heads become R wide. Meant for attentions that are linear in features of q and k.

    Args:
        head_dim: size of a head.
        max_length: how many positions there are (of the convolutional kind).
        num_kv_heads: heads with a kernel of their own; 1: all heads share one.
        kind: "sine" or "conv".
        realisations: R; None: head_dim, so that heads keep their size.
        sines: sinusoids a feature.
        taps: length of the filters: P_d(t) = 0 from this distance on.
        redraw_interval: training steps between two samples of the noise; None: never.
    """

    def __init__(
        self,
        *,
        head_dim: int,
        max_length: int,
        num_kv_heads: int = 1,
        kind: str = "sine",
        realisations: int | None = None,
        sines: int = 5,
        taps: int = 64,
        redraw_interval: int | None = 1,
    ):
        super().__init__()
        if kind not in KINDS:
            raise ValueError(
                f"kind of stochastic position must be one of {', '.join(KINDS)}, but got {kind!r}."
            )
        self.head_dim, self.max_length = (
            positive_int("head_dim", head_dim),
            positive_int("max_length", max_length),
        )
        self.num_kv_heads, self.kind = positive_int("num_kv_heads", num_kv_heads), kind
        self.sines, self.taps = positive_int("sines", sines), positive_int("taps", taps)
        self.realisations = head_dim if realisations is None else positive_int("realisations", realisations)
        self.redraw_interval = interval(redraw_interval)
        shape = (self.num_kv_heads, self.head_dim)
        self.noise: Tensor
        self.seed: Tensor
        if kind == "sine":
            self.frequency, self.phase, self.gain = (
                nn.Parameter(torch.empty(*shape, self.sines)) for _ in range(3)
            )
            self.register_buffer("noise", torch.empty(*shape, 2 * self.sines, self.realisations))
        else:
            self.query_filter, self.key_filter = (
                nn.Parameter(torch.empty(*shape, self.taps)) for _ in range(2)
            )
            # A number for each position, feature and realisation is too much to store: the seed is stored.
            self.register_buffer("seed", torch.zeros((), dtype=torch.int64))
            self._white: tuple[Tensor, int, Tensor] | None = None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.sample_missing()
        if self.kind == "sine":
            nn.init.normal_(self.frequency, mean=-4.0, std=1.0)  # waves of about 100 positions
            nn.init.zeros_(self.phase)
            nn.init.constant_(self.gain, self.sines**-0.5)
        else:
            # Equal filters without a shape: near tokens count, linearly less up to the distance `taps`.
            nn.init.constant_(self.query_filter, self.taps**-0.5)
            nn.init.constant_(self.key_filter, self.taps**-0.5)

    def sample(self) -> dict[str, Tensor]:
        if self.kind == "sine":
            return {"noise": torch.randn(self.noise.shape, device="cpu")}
        return {"seed": torch.randint(2**62, (), device="cpu")}

    def kernel(self, distance: Tensor) -> Tensor:
        """P_d(m - n) [Hk, D, ...], what products of q^ and k^ give in expectation, for distances [...]."""
        if self.kind == "sine":
            turns = self._frequency()[..., None] * distance.flatten() * (2 * math.pi)
            waves = (turns + self.phase[..., None]).cos() * self.gain.square()[..., None]
            return waves.sum(2).unflatten(-1, distance.shape)
        p = torch.arange(self.taps, device=distance.device) + distance.flatten()[:, None].long()
        inside = (p >= 0) & (p < self.taps)
        other = self.key_filter[..., p.clamp(0, self.taps - 1)] * inside  # (Hk, D, distances, taps)
        return (self.query_filter.unsqueeze(2) * other).sum(-1).unflatten(-1, distance.shape)

    @property
    def has_bound(self) -> bool:
        return self.kind == "conv"

    def rotation(self, positions: Tensor) -> Rotate:
        waves = self._waves(positions) if self.kind == "sine" else None

        def rotate(x: Tensor, *, key: bool = False) -> Tensor:
            heads, dim = x.shape[2:]
            if dim != self.head_dim or heads % self.num_kv_heads != 0:
                raise ValueError(
                    f"q and k must have heads of {self.head_dim}, in multiples of {self.num_kv_heads}, for "
                    f"this stochastic position, but got {heads} heads of {dim}."
                )
            accum_dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
            with torch.autocast(x.device.type, enabled=False):
                grouped = x.to(accum_dtype).unflatten(2, (self.num_kv_heads, -1))  # (B, T, Hk, G, D)
                out = (
                    self._conv(grouped, positions, key) if waves is None else self._sine(grouped, waves[key])
                )
                out = out.flatten(2, 3) * self.realisations**-0.5
            return out.to(x.dtype)

        return rotate

    def _frequency(self) -> Tensor:
        """In turns a position, between 0 and 1/2."""
        return torch.sigmoid(self.frequency) / 2

    def _waves(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """[cos, sin] of each sinusoid for queries and for keys, [B, T, Hk, D, 2C]: one for all layers."""
        dtype = torch.float64 if self.phase.dtype == torch.float64 else torch.float32
        angle = positions[..., None, None, None].to(dtype) * self._frequency().to(dtype) * (2 * math.pi)
        turned = angle + self.phase.to(dtype)
        of_queries, of_keys = (torch.cat([x.cos(), x.sin()], -1) for x in (turned, angle))
        return of_queries, of_keys

    def _sine(self, x: Tensor, waves: Tensor) -> Tensor:
        noise = self.noise.to(x.dtype) * self.gain.to(x.dtype).repeat(1, 1, 2)[..., None]
        # The noise of a position is never formed: waves times x, then one product with all random numbers.
        mixed = (x[..., None] * waves.to(x.dtype).unsqueeze(3)).flatten(-2)  # (B, T, Hk, G, D 2C)
        return mixed @ noise.flatten(1, 2)

    def _conv(self, x: Tensor, positions: Tensor, key: bool) -> Tensor:
        filters = (self.key_filter if key else self.query_filter).to(x.dtype)
        white = self._white_noise(x)
        each = positions.shape[0] * self.taps * self.head_dim * self.realisations
        size = max(1, _NUMBERS_AT_ONCE // each)
        parts = []
        for a in range(0, x.shape[1], size):
            here = (x[:, a : a + size], positions[:, a : a + size], filters, white)
            # The gathered noise is large, and recomputed in the backward pass.
            recompute = torch.is_grad_enabled() and (x.requires_grad or filters.requires_grad)
            parts.append(checkpoint(_filtered, *here, use_reentrant=False) if recompute else _filtered(*here))
        return torch.cat(parts, 1) if parts else x.new_zeros(*x.shape[:-1], self.realisations)

    def _white_noise(self, like: Tensor) -> Tensor:
        """[max_length + taps - 1, D, R] from the seed, the same on every device; made once."""
        made = self._white
        if made is None or made[0] is not self.seed or made[1] != self.seed._version:
            generator = torch.Generator().manual_seed(int(self.seed))
            shape = (self.max_length + self.taps - 1, self.head_dim, self.realisations)
            made = (self.seed, self.seed._version, torch.randn(shape, generator=generator, device="cpu"))
        if made[2].device != like.device or made[2].dtype != like.dtype:
            made = (*made[:2], made[2].to(like.device, like.dtype))
        self._white = made
        return made[2]

    def extra_repr(self) -> str:
        return f"kind={self.kind}, realisations={self.realisations}"


def _filtered(x: Tensor, positions: Tensor, filters: Tensor, white: Tensor) -> Tensor:
    """sum_d x_d sum_p filter_dp white(position + p)_d: [B, T, Hk, G, R] for a few positions."""
    window = white[positions[..., None] + torch.arange(filters.shape[-1], device=white.device)]
    codes = torch.einsum("btpdr,hdp->bthdr", window, filters)
    return x @ codes
