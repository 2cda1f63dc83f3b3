"""Compiled steps over tensors that stay where they are: the same tokens, one graph, and values that stay."""

import copy
import threading

import pytest
import torch
from torch._dynamo.utils import counters
from transformers.generation import GenerationMode
from transformers.generation.configuration_utils import CompileConfig

from cosformer import attention
from cosformer.models import (
    CosformerCache,
    CosformerForCausalLM,
    CosformerForConditionalGeneration,
    HorizonError,
    generation,
)
from cosformer.ops.row_state import RowState
from tests.models.test_step import numbers
from tests.models.tiny import PADDINGS, build, close, padded_batch, tokens

NEW = 12
MODELS = {
    "rotary": {"position": "rotary", "num_key_value_heads": 2, "num_hidden_layers": 1},
    "windows, conv, gate, norms": {
        "attention_parameters": {"windows": [1, 3, 3, None]}, "conv_size": 3, "output_gate": "silu",
        "output_norm": True, "qk_norm": True, "num_hidden_layers": 1,
    },
    "mixed": {"attention": ["cosformer", "rfa"], "attention_parameters": [{}, {"gate": True}],
              "position": "learned", "pre_norm": False},
    "softmax among others": {"attention": ["softmax", "cosformer"], "position": "rotary"},
    "softmax, windows": {"attention": "softmax", "attention_parameters": {"windows": [2, None, 5, 5]},
                         "num_hidden_layers": 1},
}  # fmt: skip


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()
    counters.clear()


def compiled(backend="eager"):
    """Arguments of generate: compiled in one graph, on this CPU."""
    settings = CompileConfig(fullgraph=True, backend=backend, mode=None)
    settings._compile_all_devices = True
    return {"cache_implementation": "static", "compile_config": settings}


def generate(net, ids, **options):
    torch.manual_seed(0)
    return net.generate(ids, **{"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False} | options)


def graphs():
    return counters["stats"]["unique_graphs"]


@pytest.mark.parametrize("kind", MODELS)
@torch.no_grad()
def test_one_graph_for_every_context(kind):
    """Rows padded anywhere and contexts of any length, in float32: the tokens of no cache, 200 of them where
    there are windows. One model goes through the compiler's functional form, which a graph that overwrites
    its inputs has to survive."""
    net = build(CosformerForCausalLM, torch.float32, max_position_embeddings=256, **MODELS[kind])
    options = compiled("aot_eager" if kind == "rotary" else "eager")
    for ids, mask in (padded_batch(pattern)[:2] for pattern in PADDINGS.values()):
        expected = generate(net, ids, attention_mask=mask)
        assert torch.equal(generate(net, ids, attention_mask=mask, **options), expected)
    ids = tokens(2, 1)
    count = 200 if "conv" in kind else 40  # test_two_hundred_tokens.py has the others
    out = generate(net, ids, max_new_tokens=count, min_new_tokens=count, **options)
    assert torch.equal(net(out, use_cache=False).logits[:, :-1].argmax(-1), out[:, 1:])
    assert graphs() == 1
    assert not counters["graph_break"]


def test_every_mode_and_batch_size():
    """One graph more for another batch size, and none for a mode."""
    net = build(CosformerForCausalLM, position="rotary", num_hidden_layers=1)
    found = []
    for batch, mode in (
        (2, {}),
        (2, {"do_sample": True, "top_k": 0}),
        (1, {"num_beams": 2, "do_sample": True}),
        (1, {"num_beams": 2}),
        (1, {}),
    ):
        ids = tokens(batch, 5)
        assert torch.equal(
            generate(net, ids, **mode, **compiled()), generate(net, ids, use_cache=False, **mode)
        )
        found.append(graphs())
    assert found == [1, 1, 1, 1, 2]


@pytest.mark.parametrize("kind", ["windows, conv, gate, norms", "softmax among others"])
@torch.no_grad()
def test_what_somebody_holds_stays_as_it_is(kind):
    net = build(CosformerForCausalLM, **MODELS[kind])
    ids = tokens(2, 6)
    cache = generate(net, ids, return_dict_in_generate=True, **compiled()).past_key_values
    assert cache.is_compileable
    assert cache.get_seq_length() == 6 + NEW - 1
    kept, state, past = cache.snapshot(), cache.layers[0].state, cache.past
    twin = copy.deepcopy(cache)
    before = numbers(state)
    more = tokens(2, 3)
    first = torch.cat([net(more[:, t : t + 1], past_key_values=cache).logits.clone() for t in range(3)], 1)
    assert graphs() == 1
    assert all(map(torch.equal, numbers(state), before))
    assert state.seen == past.seen == past.positions.max() == 6 + NEW - 1
    assert cache.layers[0].state.positions.tolist() == [6 + NEW + 2] * 2
    close(net(more, past_key_values=twin).logits, first)
    cache.restore(kept)
    close(net(more, past_key_values=cache).logits, first)
    cache.restore(kept)
    again = [net(more[:, t : t + 1], past_key_values=cache).logits.clone() for t in range(3)]
    close(torch.cat(again, 1), first)


@torch.no_grad()
def test_two_caches_take_turns():
    """The tensors of the graph belong to one cache at a time: the other one gets its states back."""
    net = build(CosformerForCausalLM, **MODELS["softmax among others"])
    texts, more = [tokens(2, 5), tokens(2, 8)], tokens(2, 6)
    caches = [
        generate(net, ids, return_dict_in_generate=True, max_new_tokens=2, min_new_tokens=2, **compiled())
        for ids in texts
    ]
    for t in range(6):
        for result in caches:
            got = net(more[:, t : t + 1], past_key_values=result.past_key_values).logits
            text = torch.cat([result.sequences[:, :-1], more[:, : t + 1]], 1)
            close(got, net(text, use_cache=False).logits[:, -1:])
    assert graphs() == 1


@torch.no_grad()
def test_rows_come_and_go():
    windows = {"attention_parameters": {"windows": [3, None, None, None]}, "conv_size": 2}
    net = build(CosformerForCausalLM, num_hidden_layers=1, **windows)
    ids = tokens(2, 5)
    cache = generate(net, ids, return_dict_in_generate=True, **compiled()).past_key_values
    kept, token, tail = cache.snapshot(), tokens(2, 1), tokens(2, 3)
    plain = CosformerCache(net.config)
    for change, rows in (
        (lambda c: c.reorder_cache(torch.tensor([1, 0])), [1, 0]),
        (lambda c: c.batch_select_indices(torch.tensor([1])), [1]),
        (lambda c: c.batch_select_indices(torch.tensor([False, True])), [1]),
        (lambda c: (net(tail, past_key_values=c), c.reorder_cache(torch.tensor([1, 0]))), [1, 0]),
    ):
        for own in (cache, plain):
            own.restore(kept)
            net(token, past_key_values=own)
            net(token, past_key_values=own)
            change(own)
        close(*(net(token[rows], past_key_values=own).logits.clone() for own in (cache, plain)))


@torch.no_grad()
def test_other_settings_and_a_mask():
    """A cache that goes from one compiled graph to another; a column of padding is not compiled."""
    net = build(CosformerForCausalLM, attention="softmax", num_hidden_layers=1)
    ids, token = tokens(2, 5), tokens(2, 1)
    result = generate(net, ids, return_dict_in_generate=True, **compiled())
    cache, text = result.past_key_values, result.sequences
    options = compiled("aot_eager")
    del options["cache_implementation"]
    more = torch.cat([text, token], 1)
    assert torch.equal(generate(net, more, past_key_values=cache, **options), generate(net, more))
    assert graphs() == 2
    mask = torch.ones(2, cache.get_seq_length() + 1)
    mask[0, -1] = 0
    net(token, attention_mask=mask, past_key_values=cache)
    assert cache.past.positions.tolist() == [mask.shape[1] - 1, mask.shape[1]]


@torch.no_grad()
def test_an_interrupted_step_is_not_gone_on_from(monkeypatch):
    net = build(CosformerForCausalLM, **MODELS["rotary"])
    cache = generate(net, tokens(2, 5), return_dict_in_generate=True, **compiled()).past_key_values
    kept, token = cache.snapshot(), tokens(2, 1)
    wanted = net(token, past_key_values=cache).logits.clone()

    def broken(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(cache.decoding, "call", broken)
        with pytest.raises(KeyboardInterrupt):
            net(token, past_key_values=cache)
    for look in (lambda: net(token, past_key_values=cache), cache.snapshot, lambda: cache.past):
        with pytest.raises(
            ValueError, match=r"a compiled step of this cache was interrupted: .* restore\(\)"
        ):
            look()
    cache.restore(kept)
    close(net(token, past_key_values=cache).logits, wanted)


@torch.no_grad()
def test_a_state_that_grows_out_of_its_room(monkeypatch):
    """Beyond the static columns a step is not compiled; a later call of generate() has more of them."""
    monkeypatch.setattr(generation, "MIN_STATIC_TOKENS", 8)
    net = build(CosformerForCausalLM, attention="softmax", num_hidden_layers=1)
    ids, more = tokens(2, 5), tokens(2, 6)
    mask = torch.tensor([[0, 0, 1, 1, 1], [1] * 5])
    short = {"max_new_tokens": 3, "min_new_tokens": 3}
    first = generate(net, ids, attention_mask=mask, return_dict_in_generate=True, **short, **compiled())
    cache, text, mask = first.past_key_values, first.sequences[:, :-1], torch.cat([mask, torch.ones(2, 2)], 1)
    assert cache.capacity == 8
    for t in range(6):
        text, mask = torch.cat([text, more[:, t : t + 1]], 1), torch.cat([mask, torch.ones(2, 1)], 1)
        expected = net(text, attention_mask=mask, use_cache=False).logits[:, -1:]
        close(net(more[:, t : t + 1], past_key_values=cache).logits, expected)
    assert graphs() == 1
    text, mask = torch.cat([text, more[:, :1]], 1), torch.cat([mask, torch.ones(2, 1)], 1)
    expected = generate(net, text, attention_mask=mask)
    own = {"attention_mask": mask, "past_key_values": cache, **compiled()}
    del own["cache_implementation"]  # it is the cache that is static
    assert torch.equal(generate(net, text, **own), expected)
    assert cache.capacity == 32
    assert graphs() == 2


@torch.no_grad()
def test_cutting_what_was_compiled():
    """Padding keeps its columns: those that go are those of every row."""
    net = build(CosformerForCausalLM, attention="softmax", num_hidden_layers=1)
    ids, mask, _ = padded_batch(PADDINGS["right"])
    result = generate(net, ids, attention_mask=mask, return_dict_in_generate=True, **compiled())
    text = result.sequences[:, :-1]
    mask = torch.cat([mask, torch.ones(2, NEW - 1)], 1)
    cut = NEW + 1  # two columns of the prompt too
    result.past_key_values.crop(-cut)
    again = net(text[:, -cut:], attention_mask=mask, past_key_values=result.past_key_values).logits
    close(again[:, 2:], net(text, attention_mask=mask, use_cache=False).logits[:, 2 - cut :])


@torch.no_grad()
def test_a_row_that_has_ended_reads_no_padding():
    """Its steps are not compiled from there on."""
    net, ids = build(CosformerForCausalLM, num_hidden_layers=1), tokens(2, 6)
    free = generate(net, ids)
    end = next(t for t in free[0, 7:].tolist() if t not in (0, *free[1].tolist()))
    cache, options = CosformerCache(net.config, static=True), {"eos_token_id": end, "min_new_tokens": None}
    del (own := compiled())["cache_implementation"]  # it is the cache that is static
    made = generate(net, ids, past_key_values=cache, **options, **own)
    ended = 6 + made[0, 6:].tolist().index(end) + 1
    assert graphs() == 1
    assert cache.past.positions.tolist() == [ended, made.shape[1] - 1]
    alone = net(made[:1, :ended], use_cache=True).past_key_values
    close(cache.layers[0].state.numerator[:1], alone.layers[0].state.numerator)


def test_the_end_of_the_text():
    net = build(CosformerForCausalLM, max_position_embeddings=20, num_hidden_layers=1)
    ids = tokens(2, 8)
    with pytest.raises(HorizonError, match="position 20 is past the end") as caught:
        generate(net, ids, max_new_tokens=30, **compiled())
    assert torch.equal(caught.value.sequences, generate(net, ids, max_new_tokens=13, min_new_tokens=13))


def test_where_steps_are_not_compiled(monkeypatch):
    """Without being asked, on a CPU, for an encoder-decoder, and for states that cannot be static."""
    net, ids = build(CosformerForCausalLM), tokens(2, 5)
    expected = generate(net, ids)
    assert torch.equal(generate(net, ids, cache_implementation="static"), expected)
    assert torch.equal(generate(net, ids, compile_config=compiled()["compile_config"]), expected)
    assert graphs() == 0
    source = build(CosformerForConditionalGeneration)
    with pytest.raises(ValueError, match="must be left out for an encoder-decoder"):
        generate(source, ids, cache_implementation="static")
    with monkeypatch.context() as patch:
        patch.setattr(attention.Softmax, "state_type", RowState)
        with pytest.raises(ValueError, match="'softmax': its state grows, and is no GrowingState"):
            generate(build(CosformerForCausalLM, attention="softmax"), ids, cache_implementation="static")
    with pytest.raises(ValueError, match=r"cache_implementation must be left out, or \"static\""):
        generate(net, ids, cache_implementation="offloaded_static")


@torch.no_grad()
def test_a_graph_belongs_to_a_thread():
    """Another thread takes its steps uncompiled, until the first one has ended."""
    net, ids = build(CosformerForCausalLM, num_hidden_layers=1), tokens(2, 5)
    expected, found = generate(net, ids), {}

    def work(name):
        found[name] = generate(net, ids, return_dict_in_generate=True, **compiled())

    first = threading.Thread(target=work, args=("first",))
    first.start()
    first.join()
    assert net._decoding.thread is first
    work("here")
    assert net._decoding.thread is threading.current_thread()
    second = threading.Thread(target=work, args=("second",))
    second.start()
    second.join()
    assert all(torch.equal(made.sequences, expected) for made in found.values())
    assert [found[n].past_key_values.decoding is None for n in ("first", "here", "second")] == [
        False,
        False,
        True,
    ]
    assert graphs() == 1


def test_a_copy_of_a_model_has_its_own_graph():
    net, ids = build(CosformerForCausalLM, num_hidden_layers=1), tokens(1, 5)
    expected = generate(net, ids, **compiled())
    other = copy.deepcopy(net)
    assert torch.equal(generate(other, ids, **compiled()), expected)
    other.lm_head.weight.data.neg_()
    assert not torch.equal(generate(other, ids, **compiled()), expected)
    assert torch.equal(generate(net, ids, **compiled()), expected)


def test_what_can_be_captured(monkeypatch):
    """On CUDA, without being asked: nothing but weights and states may decide what a step computes."""
    net = build(CosformerForCausalLM, torch.float32, **MODELS["mixed"])
    asked, plain = net.generation_config, GenerationMode.GREEDY_SEARCH
    assert not net._can_capture(asked, plain)  # a CPU has no graphs
    monkeypatch.setattr(CosformerForCausalLM, "device", torch.device("cuda"))
    assert net._can_capture(asked, plain)
    for options in ({"disable_compile": True}, {"max_new_tokens": 3}, {"compile_config": CompileConfig()}):
        assert not net._can_capture(replaced(asked, **options), plain)
    assert not net._can_capture(asked, GenerationMode.ASSISTED_GENERATION)
    with monkeypatch.context() as patched:
        patched.setattr(torch, "is_autocast_enabled", lambda device: True)
        assert not net._can_capture(asked, plain)
    assert not net.train()._can_capture(asked, plain)
    layer = net.eval().model.layers[0]
    hook = layer.register_forward_hook(lambda *call: None)
    assert not net._can_capture(asked, plain)
    hook.remove()
    layer.forward = layer.forward
    assert not net._can_capture(asked, plain)
    del layer.forward

    class Adapter(torch.nn.Linear):
        pass

    layer.attention.q_proj = Adapter(32, 32)
    assert not net._can_capture(asked, plain)
    grows = build(CosformerForCausalLM, torch.float32, **MODELS["softmax among others"])
    assert not grows._can_capture(asked, plain)


def replaced(config, **changes):
    config = copy.deepcopy(config)
    for name, value in changes.items():
        setattr(config, name, value)
    return config
