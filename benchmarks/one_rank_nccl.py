"""One process and NCCL: what `cosformer.distributed` asks of it (the all-gather of states, forward and
backward, a barrier), and the operator over a group of one beside the plain one. Prints one line.

    PYTHONPATH=src:. python3 -m benchmarks.one_rank_nccl
"""

from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.one_rank import launched
from cosformer import cosformer_attention
from cosformer.distributed import sequence_parallel_attention
from cosformer.distributed.exchange import _Gather, _InFlight
from cosformer.distributed.group import SequenceGroup


def check(device: torch.device) -> dict[str, float]:
    """Largest differences from what one process must find."""
    group = SequenceGroup()
    states = torch.randn(4, 12, 2, 64, 65, device=device, requires_grad=True)
    plain = states.detach()
    flight = _InFlight(group)
    flight.gather(plain)
    gathered, _ = flight.wait()
    assert gathered is not None
    again = _Gather.apply(states, group)
    again.square().sum().backward()
    assert states.grad is not None
    q, k, v = (torch.randn(2, 192, 4, 64, device=device, requires_grad=True) for _ in range(3))
    found = []
    for function in (cosformer_attention, partial(sequence_parallel_attention, group=None)):
        out: Any = function(q, k, v, causal=True, horizon=256.0)
        found.append((out.detach(), *torch.autograd.grad(out.square().sum(), (q, k, v))))
    dist.barrier()
    return {
        "all-gather": float((gathered[0] - plain).abs().max()),
        "all-gather, gradient": float((states.grad - 2 * plain).abs().max()),
        "operator": max(float((a - b).abs().max()) for a, b in zip(*found, strict=True)),
    }


def main() -> None:
    on_gpu = torch.cuda.is_available()
    with launched():
        dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo")
        found = check(torch.device("cuda" if on_gpu else "cpu"))
    print("NCCL, one rank:" if on_gpu else "gloo, one rank:", found)
    if max(found.values()) > 1e-5:
        raise SystemExit("these must be zero")


if __name__ == "__main__":
    main()
