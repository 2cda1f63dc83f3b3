"""Many texts through one batch: each as it would be alone, and read once."""

import pytest
import torch

from cosformer.models import CosformerForCausalLM, batching
from cosformer.models.batching import Choice, generate_many
from tests.models.tiny import build, tokens

GREEDY = Choice(greedy=True)
LENGTHS = (5, 1, 12, 3, 30, 2, 7)
MODELS = {
    "windows, conv": {"attention_parameters": {"windows": [1, 3, None, 7]}, "conv_size": 3},
    "mixed": {"attention": ["cosformer", "linear"], "position": "rotary"},
    "softmax": {"attention": "softmax"},
}


def alone(net, prompt, count):
    """The new tokens of generate(), without what ends a text."""
    out = net.generate(prompt[None], max_new_tokens=count, do_sample=False)[0, len(prompt) :].tolist()
    return out[:-1] if out and out[-1] == net.generation_config.eos_token_id else out


def many(net, prompts, **options):
    return dict(generate_many(net, prompts, **{"tokens": 9, "choice": GREEDY} | options))


@pytest.mark.parametrize("changes", MODELS.values(), ids=MODELS)
def test_each_text_is_as_alone(changes, monkeypatch):
    """Texts end at different tokens: rows leave and come all the time. Every prompt is read once."""
    net = build(CosformerForCausalLM, **changes)
    prompts = [tokens(n) for n in LENGTHS]
    net.generation_config.eos_token_id = alone(net, prompts[2], 9)[3]
    expected = {i: alone(net, prompt, 9) for i, prompt in enumerate(prompts)}
    assert len({len(made) for made in expected.values()}) > 1
    read, original = [], batching._read

    def spy(model, given, cache):
        read.extend(len(prompt) for prompt in given)
        return original(model, given, cache)

    monkeypatch.setattr(batching, "_read", spy)
    for size in (1, 2, 3, 20):
        read.clear()
        assert many(net, prompts, batch_size=size) == expected
        assert sorted(read) == sorted(LENGTHS)


def test_draws_do_not_depend_on_the_others():
    net = build(CosformerForCausalLM)
    prompts = [tokens(n) for n in LENGTHS]
    choice = Choice(temperature=1.3, top_k=30, top_p=0.95, seed=3)
    first = many(net, prompts, batch_size=3, choice=choice)
    assert many(net, prompts, batch_size=5, choice=choice) == first
    some = many(net, prompts[4:], batch_size=2, choice=choice, numbers=[4, 5, 6])
    assert some == {n: first[n] for n in (4, 5, 6)}
    assert many(net, prompts, choice=Choice(temperature=1.3, seed=4)) != first
    assert many(net, [prompts[0]] * 2, choice=choice)[0] != many(net, [prompts[0]] * 2, choice=choice)[1]


def test_draws_follow_the_probabilities():
    choice, logits = Choice(top_k=3), torch.tensor([0.0, 2.0, 1.0, -1.0, 0.5])
    generator = torch.Generator().manual_seed(0)
    drawn = choice.tokens(logits.expand(20_000, -1), [generator] * 20_000)
    found = torch.bincount(drawn, minlength=5) / 20_000
    kept = logits.masked_fill(torch.tensor([True, False, False, True, False]), -torch.inf)
    torch.testing.assert_close(found, kept.softmax(-1), atol=0.01, rtol=0)
    assert found[0] == found[3] == 0


def test_texts_up_to_the_end():
    """Rows at the end of what the model takes, and a long one that has gone before a short one gets there."""
    net = build(CosformerForCausalLM, attention=["linear", "cosformer"], max_position_embeddings=24)
    prompts = [tokens(20), tokens(2), tokens(20), tokens(20)]
    assert many(net, prompts, batch_size=2, tokens=4) == {i: alone(net, p, 4) for i, p in enumerate(prompts)}
    net.generation_config.eos_token_id = alone(net, prompts[0], 1)[0]
    expected = {0: [], 1: alone(net, prompts[1], 20)}
    assert len(expected[1]) > 5, "the bound of the first row would be past the end"
    assert many(net, prompts[:2], batch_size=2, tokens=20) == expected


def test_what_cannot_be_done():
    net = build(CosformerForCausalLM)
    with pytest.raises(ValueError, match="at least one token"):
        many(net, [torch.empty(0, dtype=torch.int64)])
    growing = build(CosformerForCausalLM, attention="softmax")
    caches = [growing(tokens(2, 4), use_cache=True).past_key_values for _ in range(2)]
    with pytest.raises(ValueError, match="rows of a KeyValueState cannot be replaced"):
        caches[0].replace_rows(torch.tensor([1]), caches[1])


@pytest.mark.parametrize(
    ("prompts", "options", "message"),
    [
        ([[3, 4]] * 3, {"numbers": [0, 1]}, "numbers must have one for each prompt, but ended after 2"),
        ([torch.tensor([5.9, 6.9])], {}, r"tensor \[T\] of tokens, but got torch.float32"),
        ([[]], {}, "a prompt must have at least one token"),
        (["ab"], {}, "got a str of something else: encode it with the tokenizer"),
        ([[3, [4]]], {}, "got a list of something else"),
        ([torch.tensor([[5, 6]])], {}, r"got torch.int64 of shape \[1, 2\]: one prompt at a time"),
    ],
)
def test_prompts_that_would_be_dropped_or_bent(prompts, options, message):
    with pytest.raises(ValueError, match=message):
        list(generate_many(build(CosformerForCausalLM), prompts, tokens=3, **options))


def test_a_list_is_a_prompt():
    net = build(CosformerForCausalLM)
    a, b = (list(generate_many(net, [p], tokens=3)) for p in ([3, 4], torch.tensor([3, 4])))
    assert a == b
    with pytest.raises(ValueError, match="top_p must be from 0 to 1"):
        Choice(top_p=2.0)
