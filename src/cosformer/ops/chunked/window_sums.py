"""The one sum that a head with a window is made of, forward and backward, in linear time:

    y_i = sum_j c(i - j) (a_i . b_j) c_j,   c(d) = cos((pi/2) d/W) for -ahead <= d <= back, 0 elsewhere

with `back` and `ahead` at most W - 1, and i counted from the first j. It has three forms (`form`).

    square    all rows meet all columns
    band      a tile of rows meets the columns that it can see; such a tile has the same weights everywhere
    wide      of a tile's columns, whole chunks strictly inside the window count through their summed state
              sum_j b_j [c_j cos theta_j, c_j sin theta_j], the two chunks at its ends as squares

The sum over the chunks of a sliding window takes blocks as long as the window, suffix sums of one block and
prefix sums of the next (van Herk 1992, Gil and Werman 1993): nothing is ever subtracted, so that nothing
drifts, and nothing stays behind.

A product a_i . b_j beyond the window may be inf where both are finite, and zero times inf is NaN: with
`exact`, for calls that have met such a number, what has no weight is set to zero after the product.
"""

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from cosformer.ops.chunked.workspace import scratch
from cosformer.ops.windows import CHUNK, NARROW

STEP = 2**19  # numbers in the squares of a step: they stay in the cache of a CPU
LARGE_STEP = 2**24  # where each call starts a kernel
KEPT = 2**14  # weights: so few are kept for many calls
# On a CPU (trials with heads of 16 to 128, without a record): a column of a square costs 0.6 times one of a
# band. States, which are built from all columns and read by all rows, cost with their two squares as much as
# a band of STATES columns where there are as many of the one as of the other.
IN_SQUARE = 0.6
STATES = 256
LARGEST_SQUARE = 2**20  # weights, some of which are kept

Form = Literal["square", "band", "wide"]


class Reach(NamedTuple):
    """Row i stands at i + offset, and sees columns from i + offset - back to i + offset + ahead, as far as
    its window goes: one window for all N, or several narrow ones, the n-th of the N having
    windows[n % len(windows)]."""

    windows: tuple[int, ...]
    back: int
    ahead: int
    offset: int

    def transposed(self) -> "Reach":
        """How columns are seen by rows."""
        return Reach(self.windows, self.ahead, self.back, -self.offset)


def form(rows: int, columns: int, reach: Reach, device: torch.device) -> Form:
    """How the sums over a window are computed: for one window on a CPU, in the way that costs least."""
    if len(reach.windows) > 1 or device.type != "cpu":
        return "band" if max(reach.windows) <= NARROW else "wide"
    (window,) = reach.windows
    tile, own = _band(rows, columns, reach)
    band: float = tile + own.back + own.ahead
    states = STATES * (rows + columns) / (2 * rows) if window % CHUNK == 0 else math.inf
    if IN_SQUARE * columns <= min(band, states) and rows * columns <= LARGEST_SQUARE:
        return "square"
    return "band" if window <= NARROW and band <= states else "wide"


def windowed_sum(a: Tensor, b: Tensor, c: Tensor, reach: Reach, name: str, exact: bool = False) -> Tensor:
    """y [N, Ta, E] of a [N, Ta, F], of which every row sees a column, b [N, Tb, F] and c [N, Tb, E]. What is
    returned may be memory (`scratch`) of that name."""
    rows, columns = a.shape[1], b.shape[1]
    if rows == 0 or columns == 0:
        return a.new_zeros((*a.shape[:2], c.shape[2]))
    how = form(rows, columns, reach, a.device)
    if how == "square":
        return _square_sum(a, b, c, reach, name, exact)
    if how == "band":
        return _band_sum(a, b, c, reach, name, exact)
    return _wide_sum(a, b, c, reach, exact)


def column_sum(c: Tensor, reach: Reach, rows: int, some: slice, name: str) -> Tensor:
    """sum_j c(i - j) c_j for `some` of `rows` rows, where these are no square: [N, some, E]. What comes out
    for a row does not depend on which others are asked for, to the bit: all is cut as it is for all rows."""
    n, columns, _ = c.shape
    if form(rows, columns, reach, c.device) == "band":
        tile, own = _band(rows, columns, reach)
        tiles = -(-rows // tile)
        first = min(some.start // tile, max(0, tiles - 2))  # one matrix alone may be rounded otherwise
        last = min(tiles, max(-(-some.stop // tile), first + 2))
        c = _column_tiles(c, own, tile, first, last, "columns")
        weights = _of_tile(tile, own, c)
        if len(reach.windows) > 1:
            weights = weights.repeat(n // len(reach.windows), 1, 1).repeat_interleave(c.shape[0] // n, 0)
        y = scratch(name, (c.shape[0], tile, c.shape[2]), c)
        torch.bmm(weights.expand(c.shape[0], -1, -1), c, out=y)
        return y.view(n, -1, c.shape[2])[:, some.start - first * tile : some.stop - first * tile]
    # The rows before are computed as well, and all within a window after them: states of chunks are added up
    # from the first row on.
    (window,), offset = reach.windows, reach.offset
    stop = min(rows, max(1, -(-(offset + some.stop) // window)) * window - offset)
    seen = min(columns, -(-(offset + stop + reach.ahead) // CHUNK) * CHUNK)
    ones = c.new_ones((n, max(stop, seen), 1))
    return _wide_sum(ones[:, :stop], ones[:, :seen], c[:, :seen], reach)[:, some]


def weights_of(rows: int, columns: int, reach: Reach, like: Tensor) -> Tensor:
    """c(offset + row - column): of one window [rows, columns], of several [windows, rows, columns]."""
    kept = _many_weights if len(reach.windows) * rows * columns <= KEPT else _few_weights
    return kept(rows, columns, reach, like.dtype, str(like.device))


def _weights(rows: int, columns: int, reach: Reach, dtype: torch.dtype, device: str) -> Tensor:
    shape = (rows, columns) if len(reach.windows) == 1 else (len(reach.windows), rows, columns)
    if 0 in shape:
        return torch.zeros(shape, dtype=dtype, device=device)
    # Each diagonal has one weight: from that of the last row and the first column to the opposite corner.
    d = reach.offset + torch.arange(rows - 1, -columns, -1)
    made = []
    for w in reach.windows:
        beyond = (d > min(reach.back, w - 1)) | (d < -min(reach.ahead, w - 1))
        of_diagonals = torch.cos(math.pi / 2 / w * d.double()).masked_fill(beyond, 0).to(device, dtype)
        made.append(of_diagonals.unfold(0, columns, 1).flip(0))
    return torch.stack(made).view(shape)


_many_weights, _few_weights = lru_cache(256)(_weights), lru_cache(8)(_weights)


def weigh(p: Tensor, weights: Tensor, exact: bool) -> Tensor:
    """Products, in place, times their weights; `exact`: zero where these are, also of inf."""
    p.mul_(weights)
    return p.masked_fill_(weights == 0, 0) if exact else p


def _square_sum(a: Tensor, b: Tensor, c: Tensor, reach: Reach, name: str, exact: bool) -> Tensor:
    rows, columns = a.shape[1], b.shape[1]
    weights = weights_of(rows, columns, reach, a)
    y = scratch(name, (*a.shape[:2], c.shape[2]), a)
    for part in parts(a.shape[0], rows * columns, a.device):
        p = weigh(torch.bmm(a[part], b[part].mT, out=square(a[part], b[part])), weights, exact)
        torch.bmm(p, c[part], out=y[part])
    return y


def parts(n: int, numbers: int, device: torch.device) -> Iterator[slice]:
    """As many of `n` squares of so many numbers as are computed at a time."""
    step = max(1, (STEP if device.type == "cpu" else LARGE_STEP) // max(1, numbers))
    for first in range(0, n, step):
        yield slice(first, min(first + step, n))


def square(a: Tensor, b: Tensor) -> Tensor:
    """Memory for the weights of all rows of a with all rows of b."""
    return scratch("weights", (a.shape[0], a.shape[1], b.shape[1]), a)


def _band(rows: int, columns: int, reach: Reach) -> tuple[int, Reach]:
    """Rows of a tile, and how far they see: no further than there are rows and columns."""
    windows, back, ahead, offset = reach
    back, ahead = min(back, offset + rows - 1), min(ahead, max(0, columns - 1 - offset))
    back = max(back, -ahead)
    return min(rows, 64 if back + ahead >= 32 else 32), Reach(windows, back, ahead, offset)


def _of_tile(tile: int, reach: Reach, like: Tensor) -> Tensor:
    """The weights of a tile of rows with all that it sees."""
    return weights_of(tile, tile + reach.back + reach.ahead, reach._replace(offset=reach.back), like)


def _band_sum(a: Tensor, b: Tensor, c: Tensor, reach: Reach, name: str, exact: bool) -> Tensor:
    n, rows, _ = a.shape
    tile, reach = _band(rows, b.shape[1], reach)
    tiles = -(-rows // tile)
    b, c = (_column_tiles(x, reach, tile, 0, tiles, kind) for x, kind in ((b, "columns"), (c, "values")))
    stride, width = b.shape[0] // n, b.shape[1]
    a = _laid_out(a, 0, n, stride * tile, 0, "rows").view(n * stride, tile, -1)
    weights = _of_tile(tile, reach, a)
    count = (n - 1) * stride + tiles
    step = max(1, (STEP if a.device.type == "cpu" else LARGE_STEP) // (tile * width))
    several = len(reach.windows) > 1
    if several:  # all at once: in turn, the tiles of each of the N have the weights of one window
        step = count = n * stride
        weights = weights[:, None]
    y = scratch(name, (n * stride, tile, c.shape[2]), a)
    for t in range(0, count, step):
        part = slice(t, min(t + step, count))
        p = torch.bmm(a[part], b[part].mT, out=scratch("weights", (part.stop - t, tile, width), a))
        weigh(p.view(-1, len(reach.windows), stride, tile, width) if several else p, weights, exact)
        torch.bmm(p, c[part], out=y[part])
    return y.view(n, stride * tile, -1)[:, :rows]


def _column_tiles(x: Tensor, reach: Reach, tile: int, first: int, last: int, name: str) -> Tensor:
    """What the tiles of rows from `first` to `last` see of x [N, T, F]: [N * stride, tile + back + ahead, F].
    Rows of the batch lie one after another, each padded with zeros so that no tile sees the next one: of a
    stride the first tiles are real."""
    (n, _, features), more = x.shape, reach.back + reach.ahead
    stride = last - first + (0 if n == 1 else -(-more // tile))
    flat = _laid_out(x, reach.offset - reach.back + first * tile, n, stride * tile, tile + more, name)
    return flat.as_strided((n * stride, tile + more, features), (tile * features, features, 1))


def _laid_out(x: Tensor, before: int, n: int, length: int, more: int, name: str) -> Tensor:
    """Rows [n, T, F] one behind another [n * length + more, F], each from its row `before` on (zeros where
    that is negative), with zeros behind it. The last one may be longer by `more`."""
    skip, zeros = max(0, before), max(0, -before)
    if n == 1:
        length, more = length + more, 0
    x = x[:, skip : skip + length - zeros]
    if n == 1 and zeros == 0 and x.shape[1] == length and x.is_contiguous():
        return x[0]
    flat, end = scratch(name, (n * length + more, x.shape[2]), x), zeros + x.shape[1]
    rows = flat[: n * length].view(n, length, -1)
    rows[:, zeros:end] = x
    for margin in (rows[:, :zeros], rows[:, end:], flat[n * length :]):
        if margin.numel():
            margin.zero_()
    return flat


def _wide_sum(a: Tensor, b: Tensor, c: Tensor, reach: Reach, exact: bool = False) -> Tensor:
    (window,), back, ahead, offset = reach
    rows = a.shape[1]
    first, skip = divmod(offset, CHUNK)  # the chunk of columns that stands where the first row does
    a, b, c = _chunks(a, skip), _chunks(b, 0), _chunks(c, 0)
    # The two chunks at the ends of a window, seen from the row's own: no further than there are columns.
    length = window // CHUNK
    low = max(-length, min(-1, -(first + a.shape[1]))) if back else 0
    high = min(length, max(1, b.shape[1] - first)) if ahead else 0
    y = a.new_empty((*a.shape[:3], c.shape[3]))
    for row in zip(a, b, c, y, strict=True):
        _inside(*row, window, low + 1, high - 1, first)
        for end in (low, high):
            _add_square(*row, reach, first, end, exact)
    return y.flatten(1, 2)[:, skip : skip + rows]


def _chunks(x: Tensor, before: int) -> Tensor:
    """[N, T, F] as [N, chunks, CHUNK, F], with `before` rows of zeros in front."""
    n, length, features = x.shape
    count = -(-(before + length) // CHUNK)
    if before or count * CHUNK != length:
        x = torch.nn.functional.pad(x, (0, 0, before, count * CHUNK - before - length))
    return x.view(n, count, CHUNK, features)


def _add_square(
    a: Tensor, b: Tensor, c: Tensor, y: Tensor, reach: Reach, first: int, end: int, exact: bool
) -> None:
    """Every chunk of rows with the chunk of columns that is `end` chunks further on."""
    start, stop = max(0, -first - end), min(a.shape[0], b.shape[0] - first - end)
    weights = weights_of(CHUNK, CHUNK, reach._replace(offset=-CHUNK * end), a)
    step = max(1, (STEP if a.device.type == "cpu" else LARGE_STEP) // (CHUNK * CHUNK))
    for t in range(start, stop, step):
        rows = slice(t, min(t + step, stop))
        columns = slice(rows.start + first + end, rows.stop + first + end)
        p = weigh(torch.bmm(a[rows], b[columns].mT), weights, exact)
        y[rows].baddbmm_(p, c[columns])


def _inside(a: Tensor, b: Tensor, c: Tensor, y: Tensor, window: int, low: int, high: int, first: int) -> None:
    """y of every chunk of rows with the summed state of the chunks from `low` to `high` further on."""
    length, width = high - low + 1, c.shape[2]
    if length == 0:
        y.zero_()
        return
    cc = c.new_empty((*c.shape[:2], 2 * width))
    for phase, part in zip(_phases(0, c, window), cc.split(width, -1), strict=True):
        torch.mul(c, phase, out=part)
    states = _block_states(b, cc, first + low, length)
    for r in range(0, a.shape[0], length):
        rows = a[r : r + length]
        following = _block_states(b, cc, first + low + r + length, length)
        sums = states.unbind(0)
        for i in reversed(range(length - 1)):
            sums[i].add_(sums[i + 1])
        prefix = torch.zeros_like(sums[0])
        for i in range(1, rows.shape[0]):
            sums[i].add_(prefix.add_(following[i - 1]))
        z = torch.bmm(rows, states[: rows.shape[0]])
        cos, sin = _phases(first + r, rows, window)
        torch.mul(z[..., :width], cos, out=y[r : r + length]).addcmul_(z[..., width:], sin)
        states = following


def _block_states(b: Tensor, cc: Tensor, start: int, length: int) -> Tensor:
    """sum_j b_j cc_j^T of each of `length` chunks from `start` on [length, F, 2 E]; zeros where there is
    none."""
    low, high = max(0, start), min(b.shape[0], start + length)
    if low == start and high == start + length:
        return torch.bmm(b[low:high].mT, cc[low:high])
    states = b.new_zeros((length, b.shape[2], cc.shape[2]))
    if low < high:
        torch.bmm(b[low:high].mT, cc[low:high], out=states[low - start : high - start])
    return states


def _phases(chunk: int, like: Tensor, window: int) -> tuple[Tensor, Tensor]:
    """cos and sin of (pi/2) i/W of the rows [chunks, CHUNK, .] from chunk number `chunk` on, each [chunks,
    CHUNK, 1]. The angle's period is 4 W: so it stays small at any position."""
    at = chunk * CHUNK + torch.arange(like.shape[0] * CHUNK, device=like.device)
    theta = (at % (4 * window)).double().mul_(math.pi / 2 / window).view(-1, CHUNK, 1)
    return theta.cos().to(like.dtype), theta.sin().to(like.dtype)
