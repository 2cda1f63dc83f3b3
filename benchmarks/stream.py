"""A stream of millions of tokens through heads with windows, in pieces of uneven length: does anything drift?

    python -m benchmarks.stream --tokens 10000000 --out benchmarks/reports/stream-cpu.json

The last 1,000 outputs are compared, row by row, with those computed in float64 from the last tokens alone;
the bytes of the state are counted on the way.
"""

import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.record import check_out, header
from benchmarks.terminal import Parser, Progress
from cosformer import CosformerState, cosformer_attention
from cosformer.atomic import write_json
from cosformer.cli.parser import positive_int

FORMAT = "cosformer stream benchmark 1"
WINDOWS = (1, 8, 64, 256, 320, 1024)
DIM, LAST, LONGEST_PIECE = 8, 1000, 60_000


def worst_row(found: Tensor, exact: Tensor) -> float:
    """The largest error of a row, relative to that row and to the typical one together."""
    rows = exact.norm(dim=-1)
    error = (found.double() - exact).norm(dim=-1) / (rows + rows.square().mean().sqrt())
    return float(error.nan_to_num(torch.inf).max())


def stream(tokens: int, progress: Progress) -> dict[str, Any]:
    draw = torch.Generator().manual_seed(0)
    state = CosformerState.zeros(1, len(WINDOWS), DIM, windows=WINDOWS)
    sizes, seen, began = {state.nbytes}, 0, time.perf_counter()
    kept: list[tuple[Tensor, ...]] = []
    progress.start(tokens)
    while seen < tokens:
        n = min(int(torch.randint(1, LONGEST_PIECE, (), generator=draw)), tokens - seen)
        q, k, v = torch.randn(3, 1, n, len(WINDOWS), DIM, generator=draw).unbind(0)
        out, state = cosformer_attention(
            q, k, v, causal=True, windows=WINDOWS, state=state, return_state=True
        )
        seen += n
        sizes.add(state.nbytes)
        kept.append((q, k, v, out))
        while sum(x[0].shape[1] for x in kept[1:]) > LAST + max(WINDOWS):
            kept.pop(0)
        progress.step(f"{seen:,} of {tokens:,} tokens", seen)
    progress.end()
    seconds = time.perf_counter() - began
    q, k, v, out = (torch.cat(x, 1)[:, -LAST - max(WINDOWS) :] for x in zip(*kept, strict=True))
    exact = cosformer_attention(q.double(), k.double(), v.double(), causal=True, windows=WINDOWS)
    return {
        "tokens": seen,
        "windows": WINDOWS,
        "seconds": seconds,
        "state_bytes": sorted(sizes),
        "positions": int(state.positions[0]),
        "worst_row": worst_row(out[:, -LAST:], exact[:, -LAST:]),
    }


def main(words: list[str] | None = None) -> None:
    p = Parser(prog="python -m benchmarks.stream", description=__doc__)
    p.add_argument("--tokens", type=positive_int, default=10_000_000)
    p.add_argument("--out", type=Path, help="where the record goes (default: nowhere)")
    args = p.parse_args(words)
    check_out(p, args.out)
    data = header(FORMAT, torch.device("cpu")) | stream(args.tokens, Progress())
    if args.out is not None:
        write_json(args.out, data)
    print(
        f"{data['tokens']:,} tokens in {data['seconds']:.0f} s; state of {data['state_bytes']} bytes; the "
        f"worst of the last {LAST:,} rows is off by {data['worst_row']:.1e}"
    )


if __name__ == "__main__":
    main()
