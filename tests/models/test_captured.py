"""Captured steps on a machine without a GPU: a replay computes the step in place of a CUDA graph. What is
tested is all that decides what is captured, when, and what a replay is given."""

import pytest
import torch

from cosformer.models import CosformerForCausalLM, HorizonError, generation
from cosformer.models.captured import CapturedStep
from tests.models.test_static import MODELS, compiled, generate, graphs
from tests.models.tiny import PADDINGS, build, padded_batch, tokens

KINDS = ("rotary", "windows, conv, gate, norms", "mixed")


class Graph:
    """Like a CUDA graph: reads and writes the tensors that it was captured with, whatever it is given."""

    def __init__(self, step, *call):
        self.step, self.call = step, call

    def replay(self):
        model, positions, column, states = self.call
        self.step._logits = self.step.function(model, self.step._ids, positions, column, states)


@pytest.fixture(params=["eager", "compiled"])
def options(request, monkeypatch):
    """Arguments of generate for captured steps; `captures` counts them."""

    def capture(self, model, ids, positions, column, states):
        captures.append(ids.shape[0])
        self._ids = ids.clone(memory_format=torch.contiguous_format)
        self._graph = Graph(self, model, positions, column, states)

    captures = []
    torch.compiler.reset()
    monkeypatch.setattr(CapturedStep, "_capture", capture)
    monkeypatch.setattr(CapturedStep, "captures", captures, raising=False)
    mixin = generation.StatefulGenerationMixin
    if request.param == "compiled":
        monkeypatch.setattr(mixin, "_captures_compiled", lambda self, settings: True)
        return compiled()
    monkeypatch.setattr(mixin, "_can_capture", lambda self, *asked: True)
    monkeypatch.setattr(mixin, "_valid_auto_compile_criteria", lambda self, *asked: True)
    return {}


@pytest.mark.parametrize("kind", [pytest.param(KINDS[0], marks=pytest.mark.thorough), *KINDS[1:]])
def test_tokens_are_those_of_no_cache(kind, options):
    net = build(CosformerForCausalLM, torch.float32, **MODELS[kind])
    for ids, mask in (padded_batch(pattern)[:2] for pattern in PADDINGS.values()):
        expected = generate(net, ids, attention_mask=mask, use_cache=False)
        assert torch.equal(generate(net, ids, attention_mask=mask, **options), expected)
    ids = tokens(2, 7)
    for mode in ({"do_sample": True}, {"num_beams": 3}):
        expected = generate(net, ids, use_cache=False, **mode)
        assert torch.equal(generate(net, ids, **options, **mode), expected)


def test_what_is_captured_again(options):
    """Another batch size, other weights or other memory under them; not another context or text."""
    net = build(CosformerForCausalLM, torch.float32, **MODELS["rotary"])
    captures, ids = CapturedStep.captures, tokens(2, 7)
    for other in (ids, tokens(2, 11), ids):
        generate(net, other, **options)
    assert captures == [2]
    generate(net, tokens(3, 7), **options)
    assert captures == [2, 3]
    compiled_before = graphs()
    assert torch.equal(generate(net, ids, **options), generate(net, ids, use_cache=False))
    assert captures == [2, 3, 2]
    assert graphs() == compiled_before  # the shapes were compiled before
    weight = net.model.layers[0].attention.v_proj.weight
    weight.data = -weight.data  # other memory, the same parameter
    assert torch.equal(generate(net, ids, **options), generate(net, ids, use_cache=False))
    net.model.layers[0].attention.v_proj.weight = torch.nn.Parameter(-weight.detach())
    assert torch.equal(generate(net, ids, **options), generate(net, ids, use_cache=False))
    assert captures == [2, 3, 2, 2, 2]


@torch.no_grad()
def test_other_memory_in_the_middle_of_a_text(options):
    net = build(CosformerForCausalLM, torch.float32, **MODELS["rotary"])
    out = generate(net, tokens(2, 7), **options, return_dict_in_generate=True)
    cache, captures = out.past_key_values, len(CapturedStep.captures)
    weight = net.model.layers[0].attention.v_proj.weight
    for new in (weight.data, weight.data.clone()):
        weight.data = new
        net(tokens(2, 1), past_key_values=cache)
    assert len(CapturedStep.captures) == captures + 1


def test_padding_counts_for_nothing_at_the_limit(options):
    """The mask that is kept does not grow: the length of a padded row is known all the same."""
    net = build(CosformerForCausalLM, torch.float32, **{**MODELS["rotary"], "max_position_embeddings": 20})
    ids, mask = tokens(2, 12), torch.ones(2, 12, dtype=torch.long)
    mask[:, :5] = 0
    ids[:, :5] = 0
    fits = {"attention_mask": mask, "max_new_tokens": 13, "min_new_tokens": 13}
    expected = generate(net, ids, use_cache=False, **fits)
    assert torch.equal(generate(net, ids, **options, **fits), expected)
    found = []
    for way in ({"disable_compile": True}, options):
        with pytest.raises(HorizonError) as error:
            generate(net, ids, **way, **fits | {"max_new_tokens": 20, "min_new_tokens": 20})
        found.append((error.value.sequences.shape[1], error.value.position))
    assert found == [(12 + 14, 20)] * 2


def test_which_compiled_steps_are_captured_here(monkeypatch):
    """Those that torch.compile would capture itself, of models that can be captured at all."""
    net = build(CosformerForCausalLM, torch.float32, **MODELS["rotary"])
    settings = {"backend": "inductor", "mode": "reduce-overhead"}
    assert not net._captures_compiled(settings)  # a CPU has no graphs
    monkeypatch.setattr(CosformerForCausalLM, "device", torch.device("cuda"))
    assert net._captures_compiled(settings)
    for others in (None, settings | {"mode": None}, settings | {"backend": "eager"}):
        assert not net._captures_compiled(others)
    hook = net.model.layers[0].register_forward_hook(lambda *call: None)
    assert not net._captures_compiled(settings)
    hook.remove()
    grows = build(CosformerForCausalLM, torch.float32, **MODELS["softmax among others"])
    assert not grows._captures_compiled(settings)
