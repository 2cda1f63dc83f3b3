"""Requests that share a batch: a failure is that of its own requests, and the thread goes on."""

import threading

import pytest
import torch

from cosformer.models import CosformerForCausalLM
from cosformer.models.batching import Choice
from cosformer.serving.shared import Request, SharedBatch
from tests.models.tiny import build, tokens


def request(prompt, count=6, **changes):
    """A request, and what is set with its tokens or its error."""
    done, said = threading.Event(), []

    def end(error):
        said.append(error)
        done.set()

    row = Request(prompt, count, Choice(greedy=True), torch.Generator(),
                  **{"say": said.append, "end": end} | changes)  # fmt: skip
    row.done, row.said = done, said
    return row


def ended(row):
    assert row.done.wait(60)
    return row.said


@pytest.fixture
def served():
    net = build(CosformerForCausalLM, num_hidden_layers=1, max_position_embeddings=10**5)
    return net, SharedBatch(net, 2)


def alone(net, prompt, count=6):
    return [
        *net.generate(prompt[None], max_new_tokens=count, do_sample=False)[0, len(prompt) :].tolist(),
        None,
    ]


def test_a_prompt_that_cannot_be_read_is_its_own(served):
    net, shared = served
    long = request(tokens(5), 20_000)
    shared.submit(long)
    for _ in range(2):
        bad, good = request(torch.tensor([999])), request(tokens(4))
        shared.submit(bad)
        (error,) = ended(bad)
        assert isinstance(error, IndexError | ValueError)
        shared.submit(good)
        assert ended(good) == alone(net, good.prompt)
    assert not long.done.is_set(), long.said[-1]
    long.cancelled.set()
    assert ended(long)[-1] is None
    assert len(long.made) < 20_000


def test_a_step_that_fails_ends_its_rows(served, monkeypatch):
    net, shared = served
    with monkeypatch.context() as patch:
        patch.setattr(shared._batch, "step", lambda chosen: 1 / 0)
        rows = [request(tokens(3)), request(tokens(4), 1)]
        for row in rows:
            shared.submit(row)
        assert isinstance(ended(rows[0])[-1], ZeroDivisionError)
        assert ended(rows[1]) == alone(net, rows[1].prompt, 1), "it needed no step"
    again = request(tokens(5))
    shared.submit(again)
    assert ended(again) == alone(net, again.prompt)


def test_a_reader_that_fails_ends_its_own_row(served):
    net, shared = served

    def broken(token):
        raise RuntimeError("the loop is closed")

    rows = [request(tokens(3), say=broken), request(tokens(4))]
    for row in rows:
        shared.submit(row)
    assert isinstance(ended(rows[0])[0], RuntimeError)
    assert ended(rows[1]) == alone(net, rows[1].prompt)


def test_a_request_that_is_cancelled_while_it_waits(served):
    net, shared = served
    places, waiting = [request(tokens(3), 20_000) for _ in range(2)], [request(tokens(4)) for _ in range(2)]
    for row in (*places, *waiting):
        shared.submit(row)
    waiting[0].cancelled.set()
    for row in places:
        row.cancelled.set()
    assert ended(waiting[0]) == [None]
    assert ended(waiting[1]) == alone(net, waiting[1].prompt)
