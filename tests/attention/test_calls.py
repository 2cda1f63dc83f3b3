"""What cannot be a call of any mechanism is refused by each of them, in the same words."""

import re

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from tests.attention.zoo import HEADS, build, close, having, qkv

BOUNDS = torch.tensor([0, 3, 8])


def ones(*shape, dtype=torch.bool):
    return torch.ones(shape, dtype=dtype)


@having()
def test_tensors_that_do_not_belong_together(case):
    run, (q, k, v) = build(case), qkv(8, batch=2)
    causal = run.traits.causal
    for wrong, message in (
        ((q[0], k, v), "q must be a tensor [batch, time, heads, head size], but got"),
        ((q, k[:1], v), "k must have q's batch size 2, but got 1"),
        ((q, k, v[:1]), "v must have q's batch size 2, but got 1"),
        ((q, k, torch.cat([v, v], 1)), "v must have k's length 8, but got 16"),
        ((q, k, v[:, :, :1]), f"v must have k's {HEADS} heads, but got 1"),
        ((q[:, :, :3], k, v), f"q must have a multiple of k's {HEADS} heads, but got 3"),
        ((q, k[:, :, :0], v[:, :, :0]), "q must have a multiple of k's 0 heads"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            run(*wrong, causal=causal)
    if run.traits.reads == "qkv":
        with pytest.raises(ValueError, match="k must have q's head size"):
            run(q, k[..., :-2], v, causal=causal)


@having(key_mask=True)
def test_masks_that_do_not_fit(case):
    run, inputs = build(case), qkv(8, batch=2)
    causal = run.traits.causal
    with pytest.raises(
        TypeError, match=r"key_mask must be bool, True = may be attended to, but got torch\.int64"
    ):
        run(*inputs, causal=causal, key_mask=ones(2, 8, dtype=torch.int64))
    for shape in ((2, 7), (3, 8), (8,), ()):
        with pytest.raises(ValueError, match=re.escape(f"but got {list(shape)}")):
            run(*inputs, causal=causal, key_mask=ones(*shape))
    for_all = ones(1, 8)
    for_all[0, 5:] = False
    own = run(*inputs, causal=causal, key_mask=for_all.expand(2, 8))
    close(run(*inputs, causal=causal, key_mask=for_all), own)


@having(key_mask=True)
def test_lengths_that_cannot_be(case):
    run, inputs = build(case), qkv(8, batch=2)
    causal = run.traits.causal
    with pytest.raises(TypeError, match="lengths must be an integer tensor"):
        run(*inputs, causal=causal, lengths=torch.tensor([8.0, 8.0]))
    with pytest.raises(ValueError, match=re.escape("lengths must have shape [B] = [2]")):
        run(*inputs, causal=causal, lengths=torch.tensor([8]))
    for number in (9, -2):
        with pytest.raises(ValueError, match=f"lengths must be from 0 to Tk = 8, .* but got {number}"):
            run(*inputs, causal=causal, lengths=torch.tensor([8, number]))


@having(key_mask=True, recurrent=True, causal=True)
def test_lengths_of_another_dtype(case):
    run, inputs = build(case), qkv(8, batch=2)
    short, long = (
        run(*inputs, causal=True, lengths=torch.tensor([8, 5], dtype=dtype), return_state=True)
        for dtype in (torch.int32, torch.int64)
    )
    assert torch.equal(short[0], long[0])
    assert short[1].positions.dtype == torch.int64
    assert short[1].positions.tolist() == [8, 5]


@having(cu_seqlens=True)
def test_packing_that_does_not_fit(case):
    """A mask or an offset beside it was dropped, and rows behind the first came out as zeros."""
    run, (q, k, v) = build(case), qkv(8, batch=1)
    causal = run.traits.causal
    two, wanted = qkv(8, batch=2), "key_mask and cu_seqlens do not go together"
    for inputs, more, message in (
        ((q, k, v), {"key_mask": ones(1, 8)}, wanted),
        ((q, k, v), {"lengths": torch.tensor([8])}, "lengths and cu_seqlens do not go together"),
        ((q, k, v), {"query_offset": 4}, "query_offset must be left out with cu_seqlens, but got 4"),
        (two, {}, "cu_seqlens needs a batch of 1 .*, but got 2"),
        ((q[:, :5], k, v), {}, "cu_seqlens needs q and k of the same length"),
    ):
        with pytest.raises(ValueError, match=f"{message}|cannot serve this call"):
            run(*inputs, causal=causal, cu_seqlens=BOUNDS, **more)
    for bounds in (BOUNDS.tolist(), BOUNDS.float()):
        with pytest.raises(TypeError, match="cu_seqlens must be"):
            run(q, k, v, causal=causal, cu_seqlens=bounds)
        if run.traits.packed_state:
            _, state = run(q, k, v, causal=True, cu_seqlens=BOUNDS, return_state=True)
            with pytest.raises(TypeError, match="cu_seqlens must be"):
                run(q, k, v, causal=True, cu_seqlens=bounds, state=state)


@pytest.mark.parametrize("name", ["cosformer", "softmax", "relu"])
def test_lengths_are_not_read_where_a_call_is_traced(name):
    """Their values are not known there, and reading them would end the trace."""
    run, inputs = build((name, {})), qkv(8, batch=2)

    def call(q, k, v, lengths):
        return run(q, k, v, causal=True, lengths=lengths)

    lengths = torch.tensor([8, 5])
    traced = make_fx(call, tracing_mode="fake")(*inputs, lengths)
    torch.testing.assert_close(traced(*inputs, lengths), call(*inputs, lengths))
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert call(*map(mode.from_tensor, (*inputs, lengths))).shape == inputs[2].shape


@having(recurrent=True, causal=True)
def test_states_of_another_batch(case):
    run, inputs = build(case), qkv(8, batch=2)
    _, state = run(*inputs, causal=True, return_state=True)
    row = state.select([0])
    with pytest.raises(ValueError, match=r"state must have one row for each of the 2 rows .*, but got 1"):
        run(*inputs, causal=True, state=row)
    if run.traits.packed_state:
        one = [x[:1] for x in inputs]
        with pytest.raises(ValueError, match="each of the 2 documents of cu_seqlens, but got 1"):
            run(*one, causal=True, state=row, cu_seqlens=BOUNDS)


@having(key_mask=True)
def test_a_mask_for_all_of_no_rows(case):
    """The operator takes no empty batch."""
    if case[0] == "cosformer":
        return
    run, inputs = build(case), [x[:0] for x in qkv(8, batch=2)]
    assert run(*inputs, causal=run.traits.causal, key_mask=ones(1, 8)).shape[0] == 0
