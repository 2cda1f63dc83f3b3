"""Ways to compute a depthwise convolution with many weights over both sides: forward and backward on a GPU.

    python -m benchmarks.long_convolution                 # the sizes of the arena's Image and Pathfinder
    python -m benchmarks.long_convolution --device cpu --lengths 64 --channels 16

    transform   a product of Fourier transforms, what models take
    products    of matrices, in blocks of tokens, which they take with `USE_PRODUCTS` (nn/convolution.py)
    cudnn       F.conv1d with as many groups as channels

each as it stands and in PyTorch's compiler.

A way is timed only where its values and gradients are right, judged token by token against float64: no number
is off by more than four times the spacing of its type at the largest number of the token (1e-5 of it in
float32).
"""

import time
from collections.abc import Callable
from functools import partial
from itertools import product
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.attention_operator import device_for
from benchmarks.gpu_clock import Clock
from benchmarks.terminal import Parser, plain, seconds
from cosformer.nn import convolution

ROWS = 64
ALLOWED = 4.0


def transform(x: Tensor, weight: Tensor) -> Tensor:
    return (x + convolution._transformed(x, weight)).to(x.dtype)


def products(x: Tensor, weight: Tensor) -> Tensor:
    return x + convolution._multiplied(x, weight)


def cudnn(x: Tensor, weight: Tensor) -> Tensor:
    """Its weights are turned: it correlates."""
    size = weight.shape[1]
    turned = weight.flip(1).to(x.dtype)[:, None]
    y = F.conv1d(x.transpose(1, 2), turned, padding=size // 2, groups=x.shape[2])
    return x + y.transpose(1, 2)


def exact(x: Tensor, weight: Tensor) -> Tensor:
    """Written out."""
    size, length = weight.shape[1], x.shape[1]
    around = F.pad(x, (0, 0, size // 2, size // 2))
    y = sum(around[:, size - 1 - i : size - 1 - i + length] * weight[:, i] for i in range(size))
    return (x + y).to(x.dtype)


Way = Callable[[Tensor, Tensor], Tensor]


def both(way: Way, x: Tensor, weight: Tensor, g: Tensor) -> list[Tensor]:
    y = way(x, weight)
    return [y, *torch.autograd.grad(y, (x, weight), g)]


def inputs(rows: int, length: int, channels: int, size: int, dtype: torch.dtype, device: torch.device) -> Any:
    x, g = (torch.randn(rows, length, channels, device=device, dtype=dtype) for _ in range(2))
    weight = (0.1 * torch.randn(channels, size, device=device)).requires_grad_()
    return x.requires_grad_(), weight, g


def worst(way: Way, x: Tensor, weight: Tensor, g: Tensor) -> float:
    """The largest error of a number, in spacings; of the weights' gradient channel by channel."""
    theirs = both(exact, x.detach().double().requires_grad_(), weight.double(), g.double())
    found = 0.0
    for a, b in zip(both(way, x, weight, g), theirs, strict=True):
        allowed = max(torch.finfo(x.dtype).eps, 1e-5) * b.detach().abs().amax(-1, keepdim=True)
        found = max(found, float(((a.detach().double() - b.detach()).abs() / allowed).max()))
    return found


def main() -> None:
    p = Parser(prog="python -m benchmarks.long_convolution", description=__doc__.splitlines()[0])
    p.add_argument("--device", default="cuda")
    p.add_argument("--lengths", default="1024")
    p.add_argument("--channels", default="64,256")
    p.add_argument("--size", type=int, default=67, help="weights")
    args = p.parse_args()
    device = device_for(p, args.device)
    plain_ways: dict[str, Way] = {"transform": transform, "products": products, "cudnn": cudnn}
    ways = plain_ways | {f"{name}, compiled": torch.compile(way) for name, way in plain_ways.items()}
    clock = Clock(device) if device.type == "cuda" else _clock
    torch.backends.cudnn.allow_tf32 = False  # which is not float32
    lines = []
    lengths, channels_of = (_numbers(p, name, getattr(args, name)) for name in ("lengths", "channels"))
    if args.size < 1 or args.size % 2 == 0:
        p.error(f"--size must be odd and positive, but got {args.size}")
    for length, channels, dtype in product(lengths, channels_of, (torch.bfloat16, torch.float32)):
        shape = (length, channels, args.size, dtype, device)
        for name, way in ways.items():
            torch.manual_seed(0)
            error = worst(way, *inputs(2, *shape))
            cells = [str(length), str(channels), str(dtype).removeprefix("torch."), name, f"{error:.2g}"]
            if not error <= ALLOWED:
                lines.append([*cells, "not right", "-"])
                continue
            x, weight, g = inputs(ROWS, *shape)
            with torch.no_grad():
                forward = clock(partial(way, x, weight))
            total = clock(partial(both, way, x, weight, g))
            lines.append([*cells, seconds(forward), seconds(total)])
    print(plain(("length", "channels", "dtype", "way", "error", "forward", "forward and backward"), lines))


def _numbers(p: Parser, name: str, words: str) -> list[int]:
    if not all(word.isdigit() and int(word) > 0 for word in words.split(",")):
        p.error(f"--{name} must be positive numbers with commas between them, but got {words!r}")
    return [int(word) for word in words.split(",")]


def _clock(work: Callable[[], object]) -> float:
    took = []
    for _ in range(4):
        began = time.perf_counter()
        work()
        took.append(time.perf_counter() - began)
    return median(took[1:])


if __name__ == "__main__":
    main()
