"""Laws of the zoo: every registered mechanism is under those that its traits claim, by existing."""

import json
from dataclasses import fields, replace
from itertools import pairwise

import pytest
import torch

from cosformer import attention
from cosformer.attention.base import with_positions
from cosformer.models import CosformerConfig
from tests.attention import zoo
from tests.attention.zoo import all_close, both_ways, build, close, gradients, having, qkv

LENGTHS = (1, 2, 37, 150)  # the last is more than a chunk


@pytest.mark.parametrize("name", attention.names())
def test_there_is_a_transcription(name):
    module = zoo.transcription(name)
    assert module is not None, (
        f"attention {name!r} has no slow form to be judged by: write transcriptions/{name}.py beside it "
        "(transcriptions/__init__.py says how)."
    )
    assert callable(module.transcription)


@both_ways()
@pytest.mark.parametrize("length", LENGTHS)
def test_equals_its_transcription(case, causal, length):
    run, inputs = build(case), qkv(length, batch=1 if length == 150 else 2)  # slow forms go row by row
    slow = zoo.transcription(case[0]).transcription
    ours, theirs = run(*inputs, causal=causal), slow(run, *inputs, causal=causal)
    close(ours, theirs)
    wanted = (*inputs, *run.parameters())
    all_close(gradients(ours, wanted), gradients(theirs, wanted), 1e-8)


@both_ways(key_mask=True)
def test_equals_its_transcription_under_a_mask(case, causal):
    run, inputs = build(case), qkv(33)
    mask = torch.rand(2, 33) < 0.6
    mask[1, :5] = False
    slow = zoo.transcription(case[0]).transcription
    ours = run(*inputs, causal=causal, key_mask=mask)
    theirs = slow(run, *inputs, causal=causal, key_mask=mask)
    close(ours, theirs)
    wanted = (*inputs, *run.parameters())
    all_close(gradients(ours, wanted), gradients(theirs, wanted), 1e-8)


@having(causal=True)
@pytest.mark.parametrize("length", LENGTHS)
def test_the_future_cannot_change_the_past(case, length):
    run, (q, k, v) = build(case), qkv(length)
    out = run(q, k, v, causal=True)
    for t in {1, length // 2, length - 1} - {0, length}:
        later = [torch.cat([x[:, :t], 9 * torch.randn_like(x[:, t:])], 1) for x in (q, k, v)]
        close(run(*later, causal=True)[:, :t], out[:, :t])


@both_ways(key_mask=True)
def test_a_masked_key_has_no_influence(case, causal):
    run, (q, k, v) = build(case), qkv(40)
    mask = torch.rand(2, 40) < 0.6
    mask[1, :5] = False
    hidden = ~mask[..., None, None]
    out = run(q, k, v, causal=causal, key_mask=mask)
    poisoned = run(q, k.masked_fill(hidden, torch.nan), v.masked_fill(hidden, torch.nan), causal=causal,
                   key_mask=mask)  # fmt: skip
    close(poisoned, out)
    assert all(g is None or g.isfinite().all() for g in gradients(poisoned, (q, k, v)))
    if causal:
        assert (out[1, :5] == 0).all(), "a query that sees no key gives zeros"


@having(key_mask=True, bidirectional=True)
def test_a_fully_masked_row_gives_zeros_and_zero_gradients(case):
    run, inputs = build(case), qkv(12)
    mask = torch.ones(2, 12, dtype=torch.bool)
    mask[1] = False
    out = run(*inputs, key_mask=mask)
    assert (out[1] == 0).all()
    assert out[0].abs().max() > 0
    assert all(g is None or (g[1] == 0).all() for g in gradients(out, inputs))


@having(recurrent=True, causal=True)
@pytest.mark.parametrize(
    "pieces", [[1] * 50, [20, 30], [49, 1], [7, 7, 36]], ids=["steps", "two", "end", "odd"]
)
def test_pieces_with_a_carried_state_are_the_whole(case, pieces):
    run, inputs = build(case), qkv(50)
    whole = run(*inputs, causal=True)
    outs, state = [], None
    for q, k, v in zip(*(x.split(pieces, 1) for x in inputs), strict=True):
        out, state = run(q, k, v, causal=True, state=state, return_state=True)
        outs.append(out)
    out = torch.cat(outs, 1)
    close(out, whole)
    wanted = (*inputs, *run.parameters())
    all_close(gradients(out, wanted), gradients(whole, wanted))
    assert state.positions.tolist() == [50, 50]
    assert state.seen == 50


@having(recurrent=True, causal=True, key_mask=True)
def test_masked_pieces_are_the_masked_whole(case):
    run, inputs = build(case), qkv(50)
    mask = torch.rand(2, 50) < 0.6
    whole = run(*inputs, causal=True, key_mask=mask)
    first, state = run(*(x[:, :23] for x in inputs), causal=True, key_mask=mask[:, :23], return_state=True)
    last = run(*(x[:, 23:] for x in inputs), causal=True, key_mask=mask[:, 23:], state=state)
    close(torch.cat([first, last], 1), whole)


@having(recurrent=True, causal=True, key_mask=True)
def test_a_state_stands_behind_the_last_real_token(case):
    """Rows of different lengths, twice: each goes on as it does alone, whatever lies in the padding."""
    run, inputs = build(case), qkv(30)
    lengths = torch.tensor([[9, 4], [1, 11]])  # [rows, calls]
    outs, state, done = [[], []], None, 0
    for call, width in enumerate((9, 11)):
        own = lengths[:, call]
        padding = (torch.arange(width) >= own[:, None])[..., None, None]
        piece = [x[:, done : done + width].masked_fill(padding, torch.nan) for x in inputs]
        piece[0] = piece[0].masked_fill(padding, 0)
        out, state = run(*piece, causal=True, lengths=own, state=state, return_state=True)
        for row in (0, 1):
            outs[row].append(out[row, : own[row]])
        done += width
    assert state.positions.tolist() == [13, 12]
    state = with_positions(state, state.positions, 13)
    last = run(*(x[:, 20:] for x in inputs), causal=True, state=state)
    for row in (0, 1):
        first, second = lengths[row].tolist()
        columns = [*range(first), *range(9, 9 + second), *range(20, 30)]
        alone = run(*(x[row : row + 1, columns] for x in inputs), causal=True)[0]
        close(torch.cat([*outs[row], last[row]]), alone)


@both_ways(key_mask=True)
def test_lengths_are_a_mask(case, causal):
    run, inputs = build(case), qkv(20)
    lengths, mask = torch.tensor([20, 7]), torch.rand(2, 20) < 0.7
    behind = torch.arange(20) < lengths[:, None]
    close(run(*inputs, causal=causal, lengths=lengths), run(*inputs, causal=causal, key_mask=behind))
    both = run(*inputs, causal=causal, lengths=lengths, key_mask=mask)
    close(both, run(*inputs, causal=causal, key_mask=mask & behind))


@having(recurrent=True, causal=True, cross=True)
def test_fewer_queries_behind_a_state_are_aligned_at_the_end(case):
    run, inputs = build(case), qkv(50)
    _, state = run(*(x[:, :23] for x in inputs), causal=True, return_state=True)
    q, k, v = (x[:, 23:] for x in inputs)
    close(run(q[:, 20:], k, v, causal=True, state=state), run(*inputs, causal=True)[:, 43:])


@having(recurrent=True, causal=True)
def test_states_are_selected_repeated_and_placed(case):
    run, inputs = build(case), qkv(30)
    start = [x[:, :29] for x in inputs]
    last = [x[:, 29:] for x in inputs]
    _, state = run(*start, causal=True, return_state=True)
    rows = torch.tensor([1, 1, 0])
    picked = run(*(x[rows] for x in last), causal=True, state=state.select(rows))
    close(picked, run(*inputs, causal=True)[rows, 29:])
    doubled = run(*(x.repeat_interleave(2, 0) for x in last), causal=True, state=state.repeat(2))
    close(doubled, run(*inputs, causal=True)[:, 29:].repeat_interleave(2, 0))
    moved = with_positions(state, state.positions + 3, state.seen + 3)
    assert moved.positions.tolist() == [32, 32]
    assert state.positions.tolist() == [29, 29], "states are values"


@having(recurrent=True, cross=True, bidirectional=True)
def test_a_memory_is_read_through_its_state(case):
    run, (q, k, v) = build(case), qkv(9, keys=25)
    if "windows" in case[1] and run.traits.constant_state:
        return  # the state is of the last keys alone: models give cross-attention no windows
    mask = torch.ones(2, 25, dtype=torch.bool)
    mask[1, 20:] = False
    whole = run(q, k, v, key_mask=mask, query_offset=0)
    _, memory = run(q[:, :1], k, v, key_mask=mask, query_offset=0, return_state=True)
    for t in range(9):
        at = torch.full((2,), t)
        step = run(q[:, t : t + 1], k[:, :0], v[:, :0], state=with_positions(memory, at, t), query_offset=0)
        close(step, whole[:, t : t + 1])


@both_ways(cu_seqlens=True)
def test_packed_documents_are_as_each_alone(case, causal):
    run, inputs = build(case), qkv(60, batch=1)
    bounds = [0, 1, 20, 20, 60]
    packed = run(*inputs, causal=causal, cu_seqlens=torch.tensor(bounds))
    alone = torch.cat(
        [run(*(x[:, a:b] for x in inputs), causal=causal) for a, b in pairwise(bounds) if b > a], 1
    )
    close(packed, alone)
    wanted = (*inputs, *run.parameters())
    all_close(gradients(packed, wanted), gradients(alone, wanted))


@having(packed_state=True, causal=True)
def test_states_come_and_go_for_each_document(case):
    run, inputs = build(case), qkv(40, batch=1)
    first, second = [0, 3, 3, 20], [20, 21, 30, 40]  # three documents, in two pieces each
    out, state = run(
        *(x[:, :20] for x in inputs), causal=True, cu_seqlens=torch.tensor(first), return_state=True
    )
    assert state.positions.tolist() == [3, 0, 17]
    bounds = torch.tensor(second) - 20
    rest = run(*(x[:, 20:] for x in inputs), causal=True, cu_seqlens=bounds, state=state)
    for (a, b), (c, d) in zip(pairwise(first), pairwise(second), strict=True):
        whole = run(*(torch.cat([x[:, a:b], x[:, c:d]], 1) for x in inputs), causal=True)
        close(torch.cat([out[:, a:b], rest[:, c - 20 : d - 20]], 1), whole)


@both_ways(grouped_heads=True)
def test_a_key_head_serves_each_of_its_queries_alone(case, causal):
    run, (q, k, v) = build(case, num_kv_heads=2), qkv(30, kv_heads=2)
    grouped = run(q, k, v, causal=causal)
    for member in (0, 1):
        close(grouped[:, :, member::2], run(q[:, :, member::2], k, v, causal=causal))


@having(cross=True, causal=True)
def test_causal_with_fewer_queries_is_aligned_at_the_end(case):
    run, (q, k, v) = build(case), qkv(30)
    whole = run(q, k, v, causal=True)
    close(run(q[:, 20:], k, v, causal=True), whole[:, 20:])
    close(run(q[:, 20:], k, v, causal=True, query_offset=20), whole[:, 20:])
    close(run(q[:, 10:25], k, v, causal=True, query_offset=10), whole[:, 10:25])


@having(cross=True, bidirectional=True)
def test_each_query_stands_alone(case):
    run, (q, k, v) = build(case), qkv(30)
    whole = run(q, k, v)
    close(run(q[:, :7], k, v), whole[:, :7])
    close(run(q[:, 20:], k, v, query_offset=20), whole[:, 20:])


@having(cross=True, bidirectional=True, key_mask=True)
def test_fewer_keys_are_masked_keys(case):
    run, (q, k, v) = build(case), qkv(30)
    mask = (torch.arange(30) < 11).expand(2, -1)
    close(run(q, k[:, :11], v[:, :11]), run(q, k, v, key_mask=mask))


@having(recurrent=True)
@pytest.mark.parametrize("length", [1, 17, 100])
def test_state_size_is_what_is_carried(case, length):
    heads = 2 if attention.traits(case[0]).grouped_heads else zoo.HEADS
    run, (q, k, v) = build(case, num_kv_heads=heads), qkv(length, kv_heads=heads)
    _, state = run(q, k, v, causal=run.traits.causal, return_state=True)
    carried = [getattr(state, field.name) for field in fields(state)]
    carried = sum(x.numel() for x in carried if torch.is_tensor(x) and x.is_floating_point())
    assert run.state_size(length, num_kv_heads=heads, head_dim=zoo.HEAD_DIM) * 2 == carried
    if run.traits.constant_state:
        assert run.state_size(10**6, num_kv_heads=heads, head_dim=zoo.HEAD_DIM) * 2 == carried


@having(recurrent=False)
def test_without_a_state_nothing_is_carried(case):
    assert build(case).state_size(100, num_kv_heads=zoo.HEADS, head_dim=zoo.HEAD_DIM) == 0


@both_ways(random=True)
def test_what_is_random_follows_the_seed(case, causal):
    inputs = qkv(40)

    def drawn(seed):
        torch.manual_seed(seed)
        run = build(case)
        return run(*inputs, causal=causal), run(*inputs, causal=causal)

    one, again = drawn(3)
    assert torch.equal(one, drawn(3)[0])
    assert torch.equal(one, again), "in evaluation, what was drawn stays"
    assert not torch.allclose(one, drawn(4)[0])


@both_ways(random=False)
def test_what_is_not_random_draws_nothing(case, causal):
    run, inputs = build(case).train(), qkv(40)
    before = torch.get_rng_state()
    run(*inputs, causal=causal)
    assert torch.equal(torch.get_rng_state(), before)


@having()
def test_parameters_make_the_round_trip_through_a_configuration(case, tmp_path):
    name, parameters = case
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "max_position_embeddings": zoo.HORIZON}
    config = CosformerConfig(attention=name, attention_parameters=parameters, **sizes)
    config.save_pretrained(tmp_path)
    again = CosformerConfig.from_pretrained(tmp_path)
    assert again.attention == name
    assert again.attention_parameters == json.loads(json.dumps(parameters))
    before, after = config.build_attention(), again.build_attention()
    for key in attention.parameters(name):
        assert getattr(before, key) == getattr(after, key)
    for key, value in parameters.items():
        assert getattr(after, key) == value
    assert {k: x.shape for k, x in before.state_dict().items()} == {
        k: x.shape for k, x in after.state_dict().items()
    }


REQUESTS = {
    "causal": {"causal": True},
    "bidirectional": {"causal": False},
    "cross": {"query_offset": 0},
    "key_mask": {"key_mask": torch.ones(1, 8, dtype=torch.bool)},
    "cu_seqlens": {"cu_seqlens": torch.tensor([0, 8])},
    "recurrent": {"return_state": True},
    "packed_state": {"return_state": True, "cu_seqlens": torch.tensor([0, 8])},
    "grouped_heads": {"kv_heads": 2},
}


@pytest.mark.parametrize("trait", REQUESTS)
@having()
def test_a_trait_claimed_false_raises(case, trait):
    """What is truly claimed false, and what is only said to be: the refusal is the registry's, not luck."""
    request = dict(REQUESTS[trait])
    kv_heads = request.pop("kv_heads", zoo.HEADS)
    run, inputs = build(case, num_kv_heads=kv_heads), qkv(8, batch=1, kv_heads=kv_heads)
    traits = run.traits
    request.setdefault("causal", traits.causal)
    if getattr(traits, trait):
        run(*inputs, **request)
        denied = {trait: False}
        if trait == "recurrent":
            denied |= {"packed_state": False, "constant_state": False}
        if trait in ("causal", "bidirectional"):
            denied |= {"causal": trait != "causal", "bidirectional": trait != "bidirectional"}
        run.traits = replace(traits, **denied)
    with pytest.raises(
        ValueError, match=rf"attention '{case[0]}' cannot serve this call: .*trait {trait} is False"
    ):
        run(*inputs, **request)
