"""The kernels for Hopper as an op of the library."""

from contextlib import nullcontext

import torch
from torch import Tensor

from cosformer.ops.args import AttentionArgs
from cosformer.ops.autograd import Forward, Gradients, Saved, Shape, Upstream, define
from cosformer.ops.hopper import run
from cosformer.ops.hopper.cutting import of_full_list, states_to_keep, width_of
from cosformer.ops.hopper.tape import Tape
from cosformer.ops.triton.tape import call


class Hopper:
    def forward(self, args: AttentionArgs) -> Forward:
        q, k, v, cu_seqlens = args.q, args.k, args.v, args.cu_seqlens
        again = cu_seqlens is None or run.is_joined(cu_seqlens, args.has_state)
        with _device(q):
            out, d, kept, state, z = call(
                run.forward,
                (q, k, v, args.key_mask, cu_seqlens, args.numerator, args.denominator, args.positions),
                (args.causal, args.query_offset, args.m, args.eps, args.return_state, args.keep),
                again=again,
                kind=Tape,
            )
            if not args.keep or not run.is_kept(cu_seqlens, args.causal, args.has_state):
                kept = None
            if not args.return_state:
                return Forward(out, d, kept, None, None)
            return Forward(out, d, kept, *run.public(state, z, k.shape[3], v.shape[3]))

    def backward(self, args: AttentionArgs, saved: Saved, upstream: Upstream) -> Gradients:
        q, k, v, cu_seqlens = args.q, args.k, args.v, args.cu_seqlens
        joined = run.is_joined(cu_seqlens, upstream.numerator is not None or args.numerator is not None)
        with _device(q):
            dq, dk, dv, state, z = call(
                run.backward,
                (
                    *upstream, q, k, v, *saved, args.key_mask, cu_seqlens, args.numerator, args.denominator,
                    args.positions,
                ),
                (args.causal, args.query_offset, args.m, args.eps),
                again=cu_seqlens is None or joined,
                kind=Tape,
            )  # fmt: skip
            if args.numerator is None:
                return Gradients(dq, dk, dv, None, None)
            return Gradients(dq, dk, dv, *run.public(state, z, k.shape[3], v.shape[3]))

    def shapes(self, args: AttentionArgs) -> tuple[Shape, Shape]:
        (batch, tq, heads, d), dv = args.q.shape, args.v.shape[3]
        of_d = (batch, heads, tq)
        if not args.keep or not run.is_kept(args.cu_seqlens, args.causal, args.has_state):
            return of_d, (0,)
        if args.cu_seqlens is not None:
            return of_d, (of_full_list(tq, args.rows), 4)
        kept = batch
        if args.causal:
            kept = states_to_keep(batch, heads, tq, args.q.device, width_of(d, dv))
        return of_d, (kept, args.k.shape[2], 2 * d * (dv + 1)) if kept else (0,)


def _device(x: Tensor) -> torch.cuda.device | nullcontext[None]:
    """Kernels start on the current device: make that the tensors' own."""
    if x.get_device() == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(x.device)


hopper_attention, hopper_forward, hopper_backward = define("hopper", Hopper())
