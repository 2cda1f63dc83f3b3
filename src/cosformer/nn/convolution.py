"""A short depthwise convolution over time: each channel mixed with its own last few values.

    causal      y_t = x_t + sum_{j = 0 .. K-1} w_j x_{t-j}
    both sides  y_t = x_t + sum_{j = -r .. r}  w_j x_{t-j},   r = floor(K / 2)

Inputs outside of a token's own document, and padding, are 0. The weights are the difference from the
identity: small ones change the tokens little. Over both sides a convolution with many weights is a product
of Fourier transforms. A causal one never is: rounding would carry large values back to earlier tokens.
"""

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cosformer.ops.checks import flag, positive_int, readable
from cosformer.ops.packing import document_bounds
from cosformer.ops.validation import check_lengths, check_packing, check_rows

if TYPE_CHECKING:
    from cosformer.distributed.shard import Shard

USE_PRODUCTS = False  # of matrices on a GPU, for many weights over both sides: they have not been run on one
_BLOCK = 128  # tokens of a product
_FEW = 16  # weights that are multiplied one by one: with more a transform is faster on a CPU


class ShortConvolution(nn.Module):
    """x [B, T, channels] in and out.

    Args:
        channels: each is convolved by itself.
        size: K, the tokens that a causal output reads, its own included.
        causal: the token itself and earlier ones; else floor(K / 2) tokens on each side, so that the window
            is centred (an even size reads one token more).
    """

    def __init__(self, channels: int, size: int, *, causal: bool = True):
        super().__init__()
        self.channels, self.size = positive_int("channels", channels), positive_int("size", size)
        self.causal = flag("causal", causal)
        reach = self.size // 2
        # Distance of each weight's input, back in time; later tokens where negative.
        self.distances = tuple(range(self.size)) if causal else tuple(range(-reach, reach + 1))
        self.weight = nn.Parameter(torch.empty(channels, len(self.distances)))
        self.reset_parameters()

    @property
    def memory(self) -> int:
        """The number of inputs in a state."""
        return self.size - 1

    def reset_parameters(self) -> None:
        """Near the identity, and different in every channel."""
        nn.init.normal_(self.weight, std=0.1)

    def forward(
        self,
        x: Tensor,
        *,
        key_mask: Tensor | None = None,
        lengths: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        state: Tensor | None = None,
        return_state: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """y [B, T, channels] and, with `return_state`, the last K - 1 inputs of each row (else None).

        Args:
            key_mask: bool [B, T]; where it is False the input counts as 0.
            lengths: [B], real tokens at the front of each row; the state ends with the last of them.
            cu_seqlens: [N + 1], bounds of documents packed into one row; states are then of documents.
            state: [B, K - 1, channels], the inputs before this call, 0 where there were none.
        """
        if (state is not None or return_state) and not self.causal:
            raise ValueError(
                "a convolution over both sides has no state: what comes later would change what was said. "
                "Use causal=True."
            )
        self._check_width(x)
        if cu_seqlens is not None:
            check_packing(cu_seqlens, x, x, key_mask, None)
            if readable(cu_seqlens):
                document_bounds(cu_seqlens, x.shape[1])
        self._check_rows(x, lengths, cu_seqlens, state)
        x = _without_padding(x, key_mask, lengths)
        if cu_seqlens is None:
            return self._rows(x, lengths, state, return_state)
        return self._packed(x, cu_seqlens, state, return_state)

    def _check_width(self, x: Tensor) -> None:
        if x.dim() != 3 or x.shape[2] != self.channels:
            raise ValueError(f"x must have shape [B, T, {self.channels}], but got {list(x.shape)}.")

    def _check_rows(
        self, x: Tensor, lengths: Tensor | None, cu_seqlens: Tensor | None, state: Tensor | None
    ) -> None:
        if lengths is not None:
            check_lengths(lengths, x.shape[0], x.shape[1], x.device, cu_seqlens)
        if state is not None:
            rows = check_rows(state.shape[0], x, cu_seqlens)
            if state.shape[1:] != (self.memory, self.channels):
                raise ValueError(
                    f"state must have shape {[rows, self.memory, self.channels]}, the last {self.memory} "
                    f"inputs of each row, but got {list(state.shape)}."
                )

    def over_group(self, x: Tensor, shard: "Shard", lengths: Tensor | None) -> Tensor:
        """y [B, L, channels] of the shard of one rank; `lengths` [B] counts columns of the whole sequence."""
        from cosformer.distributed.halo import with_neighbours

        if lengths is not None:
            lengths = (lengths - shard.start).clamp(0, shard.length)
        x = _without_padding(x, None, lengths)
        around, left, bounds = with_neighbours(x, shard, self.distances[-1], -self.distances[0])
        y, _ = self(around, cu_seqlens=bounds)
        return y[:, left : left + shard.length]

    def _rows(
        self, x: Tensor, lengths: Tensor | None, state: Tensor | None, return_state: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Each row is one document."""
        length, back, ahead = x.shape[1], self.distances[-1], -self.distances[0]
        if len(self.distances) > _FEW and not self.causal:
            return (x + _convolved(x, self.weight)).to(x.dtype), None
        around = F.pad(x, (0, 0, back, ahead)) if state is None else torch.cat([state.to(x.dtype), x], 1)
        y, weight = x, self.weight.to(x.dtype)
        for i, j in enumerate(self.distances):
            y = torch.addcmul(y, around[:, back - j : back - j + length], weight[:, i])
        if not return_state:
            return y, None
        if lengths is None:
            return y, around[:, length:].clone()  # a view would keep all inputs of the call in memory
        last = lengths[:, None] + torch.arange(self.memory, device=x.device)
        return y, around.gather(1, last[..., None].expand(-1, -1, self.channels))

    def _packed(
        self, x: Tensor, cu_seqlens: Tensor, state: Tensor | None, return_state: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Documents end to end in the one row of x [1, T, channels]; states are [N, K - 1, channels]."""
        length, back, ahead = x.shape[1], self.distances[-1], -self.distances[0]
        bounds = cu_seqlens.to(torch.int64)
        starts, sizes = bounds[:-1], bounds.diff()
        column = torch.arange(length, device=x.device)
        document = (torch.searchsorted(bounds, column, right=True) - 1).clamp(0, len(sizes) - 1)
        place, size = column - starts[document], sizes[document]
        around, y, weight = F.pad(x[0], (0, 0, back, ahead)), x[0], self.weight.to(x.dtype)
        for i, j in enumerate(self.distances):
            foreign = (place < j) | (place - j >= size)
            part = around[back - j : back - j + length] * weight[:, i]
            y = y + part.masked_fill(foreign[:, None], 0)
        if state is not None and length > 0:
            # The contribution of the state to the first K - 1 tokens of each document.
            nothing = x.new_zeros(len(sizes), self.memory, self.channels)
            part, _ = self._rows(nothing, None, state, False)
            begin = torch.arange(self.memory, device=x.device)
            part = part.masked_fill((begin >= sizes[:, None])[..., None], 0)
            where = (starts[:, None] + begin).clamp_max(length - 1)
            y = y.index_add(0, where.flatten(), part.flatten(0, 1))
        return y[None], self._last(x[0], starts, sizes, state) if return_state else None

    def _last(self, x: Tensor, starts: Tensor, sizes: Tensor, state: Tensor | None) -> Tensor:
        """The last K - 1 inputs of each document of x [T, channels], those before this call included."""
        if state is None:
            state = x.new_zeros(len(sizes), self.memory, self.channels)
        place = sizes[:, None] + torch.arange(-self.memory, 0, device=x.device)  # negative: in the state
        row = torch.arange(len(sizes), device=x.device)[:, None]
        before = state.to(x.dtype)[row, (self.memory + place).clamp_max(self.memory - 1)]
        own = before if x.shape[0] == 0 else x[(starts[:, None] + place).clamp_min(0)]
        return torch.where((place < 0)[..., None], before, own)


def _without_padding(x: Tensor, key_mask: Tensor | None, lengths: Tensor | None) -> Tensor:
    if lengths is not None:
        real = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
        key_mask = real if key_mask is None else key_mask & real
    return x if key_mask is None else x.masked_fill(~key_mask[..., None], 0)


def _convolved(x: Tensor, weight: Tensor) -> Tensor:
    """Each channel of x [B, T, channels] convolved with its weights [channels, K], K odd and centred on an
    output."""
    return (_multiplied if USE_PRODUCTS and x.is_cuda else _transformed)(x, weight)


def _transformed(x: Tensor, weight: Tensor) -> Tensor:
    """A product of Fourier transforms, in float32 at least."""
    (batch, length, _), size = x.shape, weight.shape[1]
    if batch == 0 or length == 0:  # of which some libraries make no transform
        return torch.zeros_like(x)
    wide = x if x.dtype == torch.float64 else x.float()
    n = -(-(length + size // 2) // 128) * 128  # of small factors; what wraps around falls on what is left out
    spectrum = torch.fft.rfft(wide, n, dim=1) * torch.fft.rfft(weight.to(wide.dtype), n).T
    return torch.fft.irfft(spectrum, n, dim=1)[:, size // 2 : size // 2 + length]


def _multiplied(x: Tensor, weight: Tensor) -> Tensor:
    """One product for each channel: of tokens in blocks, and of a matrix whose rows hold the weights, each
    one place further than the row above (a Toeplitz matrix). It is what the tokens of a block add to this
    block and to those after it. Most of the matrix is zero, but matrix units are that much faster."""
    (batch, length, channels), size = x.shape, weight.shape[1]
    blocks, reached = -(-length // _BLOCK), 1 - (1 - size) // _BLOCK
    places = (reached + 1) * _BLOCK
    matrix = F.pad(weight.to(x.dtype), (0, places - size))
    matrix = matrix[:, None].expand(-1, _BLOCK, -1).reshape(channels, -1)[:, : _BLOCK * (places - 1)]
    matrix = matrix.view(channels, _BLOCK, places - 1)[..., : reached * _BLOCK]
    x = F.pad(x, (0, 0, 0, blocks * _BLOCK - length)).unflatten(1, (blocks, _BLOCK)).permute(3, 0, 1, 2)
    added = torch.bmm(x.reshape(channels, batch * blocks, _BLOCK), matrix)
    added = added.view(channels, batch, blocks, reached, _BLOCK)
    laid = [F.pad(added[:, :, :, j], (0, 0, j, reached - 1 - j)) for j in range(reached)]
    y = torch.stack(laid).sum(0).flatten(2)[..., size // 2 : size // 2 + length]
    return y.permute(1, 2, 0)
