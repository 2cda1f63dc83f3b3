"""Every mechanism, with every parameter set of its laws, trains inside a model, is saved and loaded, and
decodes as it reads."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from cosformer import random_features
from cosformer.models import CosformerForCausalLM, CosformerForMaskedLM, CosformerForSequenceClassification
from tests.attention.zoo import having
from tests.models.tiny import build, close, config, tokens

STEPS = 25


def model(head, case, **changes):
    name, parameters = case
    torch.manual_seed(0)
    settings = {"position": "learned", "initializer_range": 0.05, **changes}
    return head(config(attention=name, attention_parameters=parameters, **settings))


def train(net, batch):
    """The losses of a few steps on one batch, with random features resampled as a training loop would."""
    net.train()
    optimizer = torch.optim.AdamW(net.parameters(), lr=5e-3)
    losses = []
    for step in range(1, STEPS + 1):
        loss = net(**batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        random_features.resample(net, step)
        losses.append(loss.item())
    return losses


def saved_and_loaded(net, folder, ids):
    net.eval()
    net.save_pretrained(folder)
    again = type(net).from_pretrained(folder).eval()
    ours, theirs = net.state_dict(), again.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(x, theirs[name]) for name, x in ours.items())
    assert torch.equal(again(ids).logits, net(ids).logits)


@having(causal=True)
def test_a_language_model_learns(case, tmp_path):
    net = model(CosformerForCausalLM, case)
    ids = (tokens(8, 1) + torch.arange(12)) % 62 + 2
    losses = train(net, {"input_ids": ids, "labels": ids})
    assert losses[-1] < 0.5 * losses[0], losses
    saved_and_loaded(net, tmp_path, ids)


@having()
def test_a_classifier_learns(case, tmp_path):
    net = model(CosformerForSequenceClassification, case, **causal_if_it_must(case))
    ids = tokens(16, 12)
    labels = torch.arange(16) % 2
    ids[labels == 1, 7] = 5
    losses = train(net, {"input_ids": ids, "labels": labels})
    assert losses[-1] < 0.5 * losses[0], losses
    saved_and_loaded(net, tmp_path, ids)


def causal_if_it_must(case):
    traits = config(attention=case[0], attention_parameters=case[1]).traits
    return {} if traits.bidirectional else {"causal": True}


def test_what_was_drawn_is_kept_where_something_beside_it_is_missing(tmp_path):
    """A file without sigma: it gets its first value again, and the random vectors are those of the file."""
    net = model(CosformerForCausalLM, ("rfa", {}))
    net.save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    kept = {name: x for name, x in stored.items() if "sigma" not in name}
    assert len(kept) == len(stored) - 2
    save_file(kept, tmp_path / "model.safetensors", metadata={"format": "pt"})
    again = CosformerForCausalLM.from_pretrained(tmp_path).state_dict()
    assert all(torch.equal(again[name], x) for name, x in kept.items())
    assert all((x == 1).all() for name, x in again.items() if "sigma" in name)


@having(causal=True, recurrent=True)
def test_a_language_model_decodes_as_it_reads(case):
    net = build(CosformerForCausalLM, attention=case[0], attention_parameters=case[1], position="rotary")
    ids = tokens(2, 12)
    whole = net(ids).logits
    out = net(ids[:, :5], use_cache=True)
    logits = [out.logits]
    for t in range(5, 12):
        out = net(ids[:, t : t + 1], past_key_values=out.past_key_values)
        logits.append(out.logits)
    close(torch.cat(logits, 1), whole)


@pytest.mark.parametrize("samples", [None, 9])
@pytest.mark.parametrize("head", [CosformerForCausalLM, CosformerForMaskedLM])
def test_a_language_model_learns_one_vs_each(head, samples):
    """It learns by pairs of classes, and is judged by its cross entropy."""
    torch.manual_seed(0)
    net = head(
        config(head_loss="one_vs_each", loss_samples=samples, position="learned", initializer_range=0.05)
    )
    ids = (tokens(8, 1) + torch.arange(12)) % 62 + 2
    batch = {"input_ids": ids, "labels": ids}
    before = net.eval()(**batch).loss
    plain = type(net)(config(position="learned"))
    plain.load_state_dict(net.state_dict())
    torch.testing.assert_close(before, plain.eval()(**batch).loss)
    losses = train(net, batch)
    assert losses[-1] < 0.5 * losses[0], losses
    assert net.eval()(**batch).loss < 0.5 * before
    assert (net.train()(**batch).logits is None) == (samples is not None)
    bound = model_bound(net, batch)
    if samples is None:
        torch.testing.assert_close(net(**batch).loss, bound)


def model_bound(net, batch):
    """The bound, from the logits: the target of a column is the next token in a causal model."""
    logits, labels = net.eval()(batch["input_ids"]).logits, batch["labels"]
    net.train()
    if net.causal:
        logits, labels = logits[:, :-1], labels[:, 1:]
    margin = logits.gather(-1, labels[..., None]) - logits
    terms = torch.nn.functional.logsigmoid(margin).scatter(-1, labels[..., None], 0)
    return -terms.sum(-1).mean()


def test_one_vs_each_takes_no_part_of_the_logits():
    net = CosformerForCausalLM(config(head_loss="one_vs_each")).train()
    ids = tokens(1, 6)
    with pytest.raises(ValueError, match="logits_to_keep must be left out"):
        net(ids, labels=ids, logits_to_keep=2)


@pytest.mark.parametrize("head", [CosformerForCausalLM, CosformerForMaskedLM])
def test_a_language_model_that_never_has_all_its_logits(head):
    """Loss and gradients are those of the same model with all logits; outputs have none while it trains."""
    torch.manual_seed(0)
    whole, chunked = head(config()), head(config(loss_chunk=7))
    chunked.load_state_dict(whole.state_dict())
    batch = {"input_ids": tokens(2, 12), "labels": tokens(2, 12)}
    batch["labels"][0, 4:7] = -100
    for more in ({}, {"num_items_in_batch": 5}):
        for net in (whole, chunked):
            net.train().zero_grad()
            net(**batch, **more).loss.backward()
        assert chunked(**batch).logits is None
        torch.testing.assert_close(chunked(**batch, **more).loss, whole(**batch, **more).loss)
        for (name, a), (_, b) in zip(chunked.named_parameters(), whole.named_parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad, msg=name)
    assert chunked.eval()(**batch).logits.shape == (2, 12, 64)
    assert chunked.train()(batch["input_ids"]).logits is not None, "nothing to learn from"


def test_a_loss_in_chunks_takes_no_part_of_the_logits():
    net = CosformerForCausalLM(config(loss_chunk=4)).train()
    ids = tokens(1, 6)
    with pytest.raises(ValueError, match="logits_to_keep must be left out where loss_chunk is given"):
        net(ids, labels=ids, logits_to_keep=2)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"head_loss": "hinge"}, "head_loss must be one of cross_entropy, one_vs_each"),
        ({"loss_samples": 5}, 'loss_samples is for head_loss="one_vs_each"'),
        ({"head_loss": "one_vs_each", "loss_samples": 1}, "loss_samples must be at least 2"),
        ({"loss_chunk": 0}, "loss_chunk must be a positive"),
        ({"head_loss": "one_vs_each", "loss_chunk": 64}, 'loss_chunk is for head_loss="cross_entropy"'),
    ],
)
def test_losses_that_cannot_be(values, message):
    with pytest.raises(ValueError, match=message):
        config(**values)
