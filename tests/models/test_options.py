"""The boundary law for every option of the family, and for layers that differ: padded, packed, cut, cached,
reordered or rolled back, a token gets what it gets alone."""

from dataclasses import fields

import pytest
import torch

from cosformer import attention
from cosformer.models import (
    CosformerCache,
    CosformerForCausalLM,
    CosformerForConditionalGeneration,
    CosformerForMaskedLM,
    CosformerForSequenceClassification,
)
from tests.models.tiny import PADDINGS, build, close, config, gradients, padded_batch, tokens

OPTIONS = {
    "conv": {"conv_size": 5},
    "conv, softmax": {"conv_size": 4, "attention": "softmax"},
    "gate": {"output_gate": "silu"},
    "sigmoid": {"output_gate": "sigmoid", "bias": False},
    "output_norm": {"output_norm": True},
    "qk_norm": {"qk_norm": True},
    "all": {"conv_size": 4, "output_gate": "silu", "output_norm": True, "qk_norm": True,
            "position": "rotary"},
    "mixed": {"attention": ["cosformer", "softmax"]},
    "windows": {"attention_parameters": {"windows": [2, 5, None, 3]}, "num_key_value_heads": 4},
    "all windows": {"attention_parameters": ({"windows": (1, 2, 3, 4)}, {"windows": (4, 8, 320, 2)}),
                    "num_key_value_heads": 4, "conv_size": 3, "position": "rotary"},
    "windows, mixed": {"attention": ["cosformer", "softmax"], "num_key_value_heads": 2,
                       "attention_parameters": [{"windows": [3, 7]}, None]},
    "mixed, conv": {"attention": ["sparse", "linear"], "attention_parameters": [{"stride": 3}, None],
                    "conv_size": 3, "position": "learned"},
}  # fmt: skip
EACH = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
MODELS = pytest.mark.parametrize("model", [CosformerForCausalLM, CosformerForMaskedLM])
PADDING = pytest.mark.parametrize("pattern", PADDINGS.values(), ids=PADDINGS)
LENGTHS = (5, 1, 2, 17, 8)


def logits_of(net, ids, **inputs):
    return net(ids, **inputs, **({"use_cache": False} if net.causal else {})).logits


@PADDING
@MODELS
@EACH
def test_padded_rows_are_as_each_alone(options, model, pattern):
    net = build(model, **{"num_key_value_heads": 2} | options)
    ids, mask, rows = padded_batch(pattern)
    weight = torch.randn(12, 64, dtype=torch.float64)
    together = logits_of(net, ids, attention_mask=mask)
    alone = [logits_of(net, row[None])[0] for row in rows]
    for out, own, expected in zip(together, mask.bool(), alone, strict=True):
        close(out[own], expected)

    def loss(logits):
        return sum((x * weight[: len(x)]).sum() for x in logits)

    whole = gradients(net, loss([out[own] for out, own in zip(together, mask.bool(), strict=True)]))
    close(whole, gradients(net, loss(alone)))
    assert len(whole) == len(list(net.named_parameters())), "every parameter has a gradient"


@MODELS
@EACH
def test_padding_may_hold_anything(options, model):
    net = build(model, **options)
    ids, mask, _ = padded_batch(PADDINGS["everywhere"])
    clean = net.get_input_embeddings()(ids).detach()
    results = []
    for x in (clean, clean.masked_fill(mask[..., None] == 0, torch.nan)):
        logits = logits_of(net, None, inputs_embeds=x, attention_mask=mask)[mask.bool()]
        results.append((logits, gradients(net, logits.square().sum())))
    close(*results)


@MODELS
@EACH
def test_packed_documents_are_as_each_alone(options, model):
    net = build(model, **options)
    docs = [tokens(n) for n in LENGTHS]
    bounds = torch.tensor([0, *torch.tensor(LENGTHS).cumsum(0)])
    if not net.config.traits.cu_seqlens:
        with pytest.raises(ValueError, match="attention 'sparse' cannot serve this call: cu_seqlens was"):
            logits_of(net, torch.cat(docs)[None], cu_seqlens=bounds)
        return
    packed = logits_of(net, torch.cat(docs)[None], cu_seqlens=bounds)[0]
    alone = torch.cat([logits_of(net, doc[None])[0] for doc in docs])
    close(packed, alone)
    weight = torch.randn_like(packed)
    close(gradients(net, (packed * weight).sum()), gradients(net, (alone * weight).sum()))


@pytest.mark.parametrize("pieces", [[1] * 12, [2, 10], [11, 1], [3, 1, 1, 7]], ids=str)
@pytest.mark.parametrize("pattern", [PADDINGS["left"], [1] * 12], ids=["left", "whole"])
@EACH
def test_pieces_with_a_cache_are_the_whole(options, pattern, pieces):
    """Of the first pieces some are shorter than the convolution's memory, some of padding alone."""
    net = build(CosformerForCausalLM, **options)
    ids, mask, _ = padded_batch(pattern)
    whole = net(ids, attention_mask=mask, use_cache=False).logits
    cache, outs, done = None, [], 0
    for n in pieces:
        out = net(
            ids[:, done : done + n], attention_mask=mask[:, : done + n], past_key_values=cache, use_cache=True
        )
        cache, done = out.past_key_values, done + n
        outs.append(out.logits)
    close(torch.cat(outs, 1)[mask.bool()], whole[mask.bool()])
    assert cache.past.positions.tolist() == mask.sum(1).tolist()


@PADDING
@EACH
def test_a_padded_prompt_continues_as_it_does_alone(options, pattern):
    net = build(CosformerForCausalLM, **options)
    ids, mask, rows = padded_batch(pattern)
    more = tokens(2, 6)
    more_mask = torch.tensor([[1, 1, 0, 1, 1, 1], [1, 0, 0, 0, 0, 0]])
    out = net(ids, attention_mask=mask, use_cache=True)
    out = net(more, attention_mask=torch.cat([mask, more_mask], 1), past_key_values=out.past_key_values)
    last = tokens(2, 1)
    step = net(last, past_key_values=out.past_key_values).logits
    for i, row in enumerate(rows):
        own = more_mask[i].bool()
        alone = net(torch.cat([row, more[i, own], last[i]])[None]).logits[0]
        close(out.logits[i, own], alone[len(row) : -1])
        close(step[i], alone[-1:])


@pytest.mark.parametrize(
    "how", [{}, {"num_beams": 3}, {"do_sample": True, "num_return_sequences": 2}], ids=str
)
@EACH
def test_generation_is_as_without_a_cache_and_as_alone(options, how):
    net = build(CosformerForCausalLM, **options)
    ids, mask, rows = padded_batch(PADDINGS["inside"])
    results = []
    for cached in (True, False):
        torch.manual_seed(3)
        results.append(net.generate(ids, attention_mask=mask, max_new_tokens=9, use_cache=cached, **how))
    assert torch.equal(*results)
    if "do_sample" not in how:
        for row, text in zip(rows, results[0], strict=True):
            alone = net.generate(row[None], max_new_tokens=9, **how)
            assert torch.equal(alone[0, len(row) :], text[12:])


@EACH
def test_the_cache_is_kept_reordered_saved_and_restored(options, tmp_path, monkeypatch):
    net = build(CosformerForCausalLM, **options)
    ids, mask, _ = padded_batch(PADDINGS["right"])
    cache = net(ids, attention_mask=mask, use_cache=True).past_key_values
    kept, more = cache.snapshot(), tokens(2, 3)

    def step(cache, rows=(0, 1)):
        return net(more[list(rows)], past_key_values=cache, use_cache=True).logits

    wanted = step(cache)
    cache.restore(kept)
    cache.save(tmp_path / "cache.safetensors")
    again = CosformerCache.load(tmp_path / "cache.safetensors", net.config)
    assert again.nbytes == cache.nbytes
    assert torch.equal(step(again), wanted)
    for change, rows in (
        (lambda: cache.reorder_cache(torch.tensor([1, 0])), [1, 0]),
        (lambda: cache.batch_select_indices(torch.tensor([1])), [1]),
        (lambda: cache.batch_repeat_interleave(2), [0, 0, 1, 1]),
        (lambda: (cache.layers[0].offload(), cache.layers[0].prefetch()), [0, 1]),
    ):
        cache.restore(kept)
        change()
        close(step(cache, rows), wanted[rows])
    cache.restore(kept)
    with monkeypatch.context() as patch:
        patch.setattr(net.model.layers[1].feed_forward, "forward", lambda x: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            step(cache)
    close(step(cache), wanted)


@EACH
def test_state_size_is_what_is_carried(options):
    net = build(CosformerForCausalLM, **options)
    cache = net(tokens(1, 13), use_cache=True).past_key_values

    def numbers(state):
        inner = numbers(state.attention) + state.inputs.numel() if hasattr(state, "inputs") else 0
        own = [getattr(state, field.name) for field in fields(state)]
        own = [x for x in own if torch.is_tensor(x) and x.is_floating_point()]
        return inner or sum(x.numel() for x in own)

    assert sum(numbers(layer.state) for layer in cache.layers) == net.config.state_size(13)


@EACH
def test_saved_and_loaded(options, tmp_path):
    net = build(CosformerForCausalLM, torch.float32, **options)
    net.save_pretrained(tmp_path)
    again = CosformerForCausalLM.from_pretrained(tmp_path).eval()
    for name in ("attention", "attention_parameters", "conv_size", "qk_norm", "output_norm", "output_gate"):
        assert getattr(again.config, name) == getattr(net.config, name), name
    ids = tokens(2, 11)
    assert torch.equal(again(ids).logits, net(ids).logits)


@pytest.mark.parametrize("target", PADDINGS.values(), ids=PADDINGS)
@EACH
def test_an_encoder_decoder(options, target):
    if options.get("attention") == ["sparse", "linear"]:
        with pytest.raises(ValueError, match="needs cross-attention, and attention 'sparse' has none"):
            build(CosformerForConditionalGeneration, **options)
        return
    net = build(CosformerForConditionalGeneration, **options)
    ids, mask, rows = padded_batch(PADDINGS["everywhere"])
    given, given_mask, answers = padded_batch(target)
    how = {"attention_mask": mask, "decoder_attention_mask": given_mask}
    out = net(ids, decoder_input_ids=given, **how, use_cache=True)
    more = tokens(2, 2)
    how["decoder_attention_mask"] = torch.cat([given_mask, torch.ones_like(more)], 1)
    after = net(ids, decoder_input_ids=more, past_key_values=out.past_key_values, **how).logits
    for i, (row, answer) in enumerate(zip(rows, answers, strict=True)):
        alone = net(row[None], decoder_input_ids=torch.cat([answer, more[i]])[None]).logits[0]
        close(out.logits[i][given_mask[i].bool()], alone[:-2])
        close(after[i], alone[-2:])


def test_without_options_nothing_is_added():
    plain = {name for name, _ in build(CosformerForCausalLM).named_parameters()}
    every = {name for name, _ in build(CosformerForCausalLM, **OPTIONS["all"]).named_parameters()}
    added = {name.split("layers.0.attention.")[1] for name in every - plain if "layers.0" in name}
    assert added == {
        "convolution.weight", "q_norm.weight", "k_norm.weight", "output_norm.weight",
        "output_gate.proj.weight", "output_gate.bias",
    }  # fmt: skip


def test_how_options_begin():
    """A model as it is made: the convolution near the identity, gates open, norms of scale 1."""
    torch.manual_seed(0)
    net = CosformerForCausalLM(config(**OPTIONS["all"], initializer_range=0.02))
    layer = net.model.layers[1].attention
    assert 0.05 < layer.convolution.weight.std() < 0.15
    assert torch.nn.functional.silu(layer.output_gate.bias).allclose(torch.ones(()), atol=1e-3)
    assert 0.015 < layer.output_gate.proj.weight.std() < 0.025
    assert (layer.q_norm.weight == 1).all()
    assert (layer.output_norm.weight == 1).all()


def test_what_a_file_lacks_begins_as_in_a_fresh_model(tmp_path):
    """Loading builds on the meta device: a weight that is not in the file must not be left over memory."""
    build(CosformerForCausalLM, torch.float32).save_pretrained(tmp_path)
    net = CosformerForCausalLM.from_pretrained(tmp_path, **OPTIONS["all"])
    layer = net.model.layers[0].attention
    assert torch.nn.functional.silu(layer.output_gate.bias).allclose(torch.ones(()), atol=1e-3)
    assert 0.05 < layer.convolution.weight.std() < 0.15
    assert (layer.k_norm.weight == 1).all()
    assert all(p.isfinite().all() for p in net.parameters())


@pytest.fixture
def compiler():
    """What is compiled for a test counts towards the limit of recompilations of no other."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.usefixtures("compiler")
@pytest.mark.thorough
@pytest.mark.parametrize(
    "changes", [{}, {"attention_parameters": {"windows": (1, 4, 320, 2)}}], ids=["all", "all windows"]
)
def test_a_step_compiles_without_a_break(changes):
    """One layer: a second one would be traced by the same lines, in as much time again."""
    net = build(CosformerForCausalLM, torch.float32, **OPTIONS["all"] | changes, num_hidden_layers=1).train()
    ids, mask, _ = padded_batch(PADDINGS["everywhere"])
    compiled = torch.compile(net, fullgraph=True, dynamic=True, backend="aot_eager")
    how = {"attention_mask": mask, "labels": ids, "use_cache": False}
    plain = gradients(net, net(ids, **how).loss)
    close(gradients(net, compiled(ids, **how).loss), plain, 1e-4)


@EACH
def test_checkpointing_gives_equal_gradients(options):
    net = build(CosformerForCausalLM, **options).train()
    ids = tokens(3, 12)
    plain = gradients(net, net(ids, labels=ids).loss)
    for reentrant in (False, True):
        net.gradient_checkpointing_enable({"use_reentrant": reentrant})
        close(gradients(net, net(ids, labels=ids).loss), plain, 1e-10)


@pytest.mark.parametrize("head", [CosformerForCausalLM, CosformerForSequenceClassification])
@EACH
def test_a_model_with_it_learns(options, head):
    torch.manual_seed(0)
    net = head(config(**{"position": "learned"} | options, initializer_range=0.05)).train()
    ids = (tokens(8, 1) + torch.arange(12)) % 62 + 2
    labels = ids if head is CosformerForCausalLM else torch.arange(8) % 2
    optimizer = torch.optim.AdamW(net.parameters(), lr=5e-3)
    losses = []
    for _ in range(30):
        loss = net(input_ids=ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0], losses


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"conv_size": 0}, "conv_size must be a positive int, but got 0"),
        ({"output_gate": "relu"}, "output_gate must be one of silu, sigmoid, but got 'relu'"),
        ({"qk_norm": 2}, "qk_norm must be"),
        ({"output_norm": "yes"}, "output_norm must be"),
    ],
)
def test_impossible_values(values, message):
    with pytest.raises((TypeError, ValueError), match=message):
        config(**values)


def test_a_convolved_cache_cannot_be_cropped():
    net = build(CosformerForCausalLM, **OPTIONS["conv, softmax"])
    cache = net(tokens(2, 9), use_cache=True).past_key_values
    before = cache.snapshot()
    assert not cache.is_croppable
    with pytest.raises(ValueError, match="a ConvolvedState of constant size cannot forget its last 2 tokens"):
        cache.crop(-2)
    assert cache.snapshot() == before
    with pytest.raises(ValueError, match="the state of a convolution, of constant size, cannot forget"):
        net.generate(tokens(1, 9), prompt_lookup_num_tokens=2, max_new_tokens=4)


def test_a_cache_of_another_convolution_is_refused(tmp_path):
    net = build(CosformerForCausalLM, conv_size=4)
    cache = net(tokens(2, 9), use_cache=True).past_key_values
    cache.save(tmp_path / "cache.safetensors")
    with pytest.raises(ValueError, match="conv_size is 4 there and None here"):
        CosformerCache.load(tmp_path / "cache.safetensors", config())
    with pytest.raises(ValueError, match="qk_norm is False there and True here"):
        CosformerCache.load(tmp_path / "cache.safetensors", config(conv_size=4, qk_norm=True))


@pytest.mark.parametrize("mechanism", attention.names())
def test_half_precision(mechanism):
    """Autocast around float32 weights, and a model in bfloat16: near the float32 loss, gradients finite."""
    head = CosformerForCausalLM if attention.traits(mechanism).causal else CosformerForMaskedLM
    net = build(head, torch.float32, **OPTIONS["all"] | {"attention": mechanism}).train()
    ids = tokens(2, 12)
    loss = net(ids, labels=ids).loss
    met = []
    mixer = net.model.layers[0].attention.attention
    handle = mixer.register_forward_pre_hook(lambda module, qkv: met.append({x.dtype for x in qkv}))
    with torch.autocast("cpu", torch.bfloat16):
        half = net(ids, labels=ids).loss
        handle.remove()
        assert met == [{torch.bfloat16}]
        assert half.dtype == torch.float32
        close(half, loss, 0.05)
        assert all(g.isfinite().all() for g in gradients(net, half).values())
        if net.config.lacking("recurrent") is None:
            net.eval()
            out = net(ids[:, :5], use_cache=True)
            assert net(ids[:, 5:], past_key_values=out.past_key_values).logits.isfinite().all()
    close(net.bfloat16()(ids, labels=ids).loss.float(), loss, 0.05)
