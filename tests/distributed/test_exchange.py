"""What is sent: how much, when, and that it does not depend on the length."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from cosformer import attention
from cosformer.distributed import Shard, exchange, sequence_mesh
from cosformer.models import sequence_parallel, shard_batch
from cosformer.nn import MultiheadAttention
from tests.distributed.test_models import batch_of, build, gradients


class Sent:
    """Counts the bytes that a rank hands to torch.distributed, by function, and says when."""

    def __init__(self, monkeypatch):
        self.events = []
        gather, swap, reduce = exchange._all_gather, dist.batch_isend_irecv, dist.all_reduce

        def all_gather(out, x, **how):
            self.events.append(("gather", x.nbytes))
            return gather(out, x, **how)

        def batch_isend_irecv(ops):
            self.events.append(("swap", sum(op.tensor.nbytes for op in ops if op.op is dist.isend)))
            return swap(ops)

        def all_reduce(x, **how):
            self.events.append(("reduce", x.nbytes))
            return reduce(x, **how)

        wait = exchange._InFlight.wait

        def waited(flight):
            self.events.append(("wait", 0))
            return wait(flight)

        monkeypatch.setattr(exchange, "_all_gather", all_gather)
        monkeypatch.setattr(dist, "batch_isend_irecv", batch_isend_irecv)
        monkeypatch.setattr(dist, "all_reduce", all_reduce)
        monkeypatch.setattr(exchange._InFlight, "wait", waited)


def sent_by_model(group, name, lengths):
    found = []
    for length in lengths:
        model = sequence_parallel(build(name), group)
        batch = {"input_ids": torch.zeros(2, length * group.size, dtype=torch.int64)}
        batch["labels"] = batch["input_ids"]
        shard = shard_batch(batch, group, causal=True)
        with pytest.MonkeyPatch.context() as patch:
            sent = Sent(patch)
            model(**shard).loss.backward()
        found.append([event for event in sent.events if event[0] != "wait"])
    return found


def test_bytes_do_not_depend_on_the_length(workers):
    layers, rows, heads, dim = 2, 2, 2, 8
    state = rows * heads * 2 * dim * (dim + 1) * 4
    for events in zip(*workers.run(sent_by_model, "causal", (2, 10), size=3), strict=True):
        for sent in events:
            # One all-gather a layer forward, and one backward; then the loss, and its gradient.
            assert [e for e in sent if e[0] == "gather"] == [("gather", state)] * 2 * layers
            assert [e for e in sent if e[0] == "reduce"] == [("reduce", 4)] * 2
            assert len(sent) == 2 * layers + 2


def test_bytes_of_halos(workers):
    """One head of two with a window of 3, and a convolution of 4 tokens over q, k and v (32 + 16 + 16
    channels): 2 and 3 rows of a neighbour, forward and backward."""
    rows, dim = 2, 8
    window, convolution = rows * 2 * 2 * dim * 4, rows * 3 * 64 * 4
    first, *_, last = workers.run(sent_by_model, "everything", (3, 10), size=3)
    for sent in first:  # it has no neighbour before it: its rows go behind it, and no gradients come back
        assert [e for e in sent if e[0] == "swap"] == [("swap", n) for n in (convolution, window)] * 2 + [
            ("swap", 0)
        ] * 4
    for sent in last:
        back = [("swap", n) for n in (window, convolution)] * 2
        assert [e for e in sent if e[0] == "swap"] == [("swap", 0)] * 4 + back


def test_bytes_of_a_softmax_with_windows(workers):
    """A cosFormer with windows of 2 and 5 and a softmax with windows of 4 and 9, all of whose heads get what
    the widest reaches: 4 and 8 rows, whatever the length."""
    rows, heads, dim = 2, 2, 8
    of_layers = [n * rows * heads * 2 * dim * 4 for n in (4, 8)]
    first, *_, last = workers.run(sent_by_model, "hybrid", (9, 20), size=3)
    for sent in first:
        assert [e for e in sent if e[0] == "swap"] == [("swap", n) for n in (*of_layers, 0, 0)]
    for sent in last:
        assert [e for e in sent if e[0] == "swap"] == [("swap", n) for n in (0, 0, *of_layers[::-1])]
    for sent in (*first, *last):
        assert not [e for e in sent if e[0] == "gather"]


def order_of_events(group):
    layer = MultiheadAttention(32, 4, attention.build("cosformer", horizon=64.0), causal=True)
    x = torch.randn(1, 5, 32, requires_grad=True)
    with pytest.MonkeyPatch.context() as patch:
        sent = Sent(patch)
        note = lambda name: lambda *_: sent.events.append((name, 0))  # noqa: E731
        layer.q_proj.register_forward_hook(note("queries"))
        out, _ = layer(x, shard=Shard(group, 5))
        sent.events.append(("backward", 0))
        layer.q_proj.weight.register_hook(note("queries"))
        out.sum().backward()
    return [name for name, _ in sent.events]


def test_queries_are_computed_while_states_are_sent(workers):
    for events in workers.run(order_of_events, size=2):
        assert events == ["gather", "queries", "wait", "backward", "gather", "queries", "wait"]


def fsdp_step(group):
    """Two groups of two ranks: parameters are sharded over all four, a batch over the groups, a sequence over
    the ranks of each."""
    mesh = sequence_mesh(2, device_type="cpu")
    model, whole = build("everything"), build("everything")
    sequence_parallel(model, mesh["sequence"])
    every = init_device_mesh("cpu", (4,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=every)
    fully_shard(model, mesh=every)
    batch = batch_of("uneven", whole, 4)
    batches = [{name: x[rows] for name, x in batch.items()} for rows in (slice(0, 2), slice(1, 3))]
    own = batches[mesh["data"].get_local_rank()]
    loss = model(**shard_batch(own, mesh["sequence"], causal=True)).loss
    loss.backward()
    expected = sum(whole(**b).loss for b in batches) / 2
    expected.backward()
    every_loss = loss.detach().clone()
    dist.all_reduce(every_loss)
    assert abs(every_loss / 4 - expected) < 1e-5
    wanted = gradients(whole)
    scale = max(x.abs().max() for x in wanted.values())
    for name, parameter in model.named_parameters():
        assert (parameter.grad.full_tensor() - wanted[name]).abs().max() < 1e-5 * scale, name


def test_fsdp_beside_sequence_parallel(workers):
    workers.run(fsdp_step)
