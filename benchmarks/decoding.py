"""Does a token cost the same after 100,000 others as after 100? Both are timed in turns."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from benchmarks.contenders import Shape
from benchmarks.terminal import Progress
from benchmarks.timing import clock, summary

POSITIONS = (100, 100_000)
HORIZON = 200_000
PIECE = 4096  # tokens a prefill call takes
TOKENS = 20  # decoded in one timed call
ROUNDS = 40


def prefilled(shape: Shape, tokens: int) -> Any:
    """The state after `tokens` tokens, from calls of at most PIECE tokens, as a server would make them."""
    from cosformer import cosformer_attention

    state = None
    for start in range(0, tokens, PIECE):
        piece = replace(shape, length=min(PIECE, tokens - start))
        q, k, v, _ = piece.inputs(seed=start)
        _, state = cosformer_attention(q, k, v, causal=True, horizon=HORIZON, state=state, return_state=True)
    return state


def decoder(shape: Shape, position: int) -> tuple[Callable[[], object], Any]:
    """A call that decodes TOKENS tokens, one at a time, from this position on; and its state."""
    from cosformer import cosformer_attention

    with torch.no_grad():
        start = prefilled(shape, position)
    steps = [replace(shape, length=1).inputs(seed=i)[:3] for i in range(TOKENS)]

    @torch.no_grad()
    def decode() -> object:
        state = start
        for q, k, v in steps:
            _, state = cosformer_attention(
                q, k, v, causal=True, horizon=HORIZON, state=state, return_state=True
            )
        return state

    return decode, start


def measure(shape: Shape, progress: Progress) -> list[dict[str, Any]]:
    """Per position: seconds a token and bytes of the state."""
    progress.start(len(POSITIONS) + ROUNDS)
    calls: list[Callable[[], object]] = []
    records: list[dict[str, Any]] = []
    samples: list[list[float]] = [[] for _ in POSITIONS]
    for position in POSITIONS:
        progress.step(f"decoding: prefilling {position:,} tokens")
        decode, state = decoder(shape, position)
        decode()
        calls.append(decode)
        state_bytes = state.numerator.nbytes + state.denominator.nbytes
        records.append({"position": position, "state_bytes": state_bytes})
    for round_ in range(ROUNDS):
        progress.step("decoding: one token at a time")
        for i in (0, 1) if round_ % 2 else (1, 0):
            samples[i] += [s / TOKENS for s in clock(shape.device, calls[i], 2)]
    progress.end()
    return [{**record, **summary(times)} for record, times in zip(records, samples, strict=True)]
