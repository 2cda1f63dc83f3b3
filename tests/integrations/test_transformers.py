"""cosFormer inside Hugging Face models: what a token gets depends on its own text alone, however it was
padded or cached, and it is what the equation says."""

import importlib
import itertools
import math
import sys
import threading

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from cosformer.integrations.transformers import enable, report
from tests.integrations.tiny import (
    HOSTS,
    LENGTHS,
    PAD,
    POSITIONS,
    TWO_TEXTS,
    VOCABULARY,
    arguments,
    assert_close,
    rows,
    tiny,
)

EVERY = pytest.mark.parametrize("name", HOSTS)
GENERATING = pytest.mark.parametrize("name", [name for name, host in HOSTS.items() if host.generates])
PADDED = pytest.mark.parametrize(
    ("name", "side"), [(name, side) for name, host in HOSTS.items() for side in host.sides]
)


def gradients(model):
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return found


@PADDED
def test_padded_equals_unpadded(name, side):
    """Values, and the gradients of every parameter."""
    model, texts = tiny(name), rows(*LENGTHS)
    weights = torch.randn(len(texts), max(LENGTHS), VOCABULARY, dtype=torch.float64)
    together = model(**arguments(name, texts, side)).logits
    loss = 0
    for row, text in enumerate(texts):
        start = together.shape[1] - len(text) if side == "left" else 0
        real = together[row, start : start + len(text)]
        alone = model(**arguments(name, [text])).logits[0]
        assert_close(real, alone)
        loss = loss + (real * weights[row, : len(text)]).sum()
    loss.backward()
    padded = gradients(model)
    for row, text in enumerate(texts):
        (model(**arguments(name, [text])).logits[0] * weights[row, : len(text)]).sum().backward()
    unpadded = gradients(model)
    assert padded.keys() == unpadded.keys()
    for parameter in padded:
        assert_close(padded[parameter], unpadded[parameter])


def test_images_do_not_see_each_other():
    model, given = tiny("vit"), arguments("vit", rows(*LENGTHS))
    together = model(**given).logits
    for row, image in enumerate(given["pixel_values"]):
        assert_close(together[row], model(pixel_values=image[None]).logits[0])


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_may_hold_nan_and_a_row_may_be_padding_alone(side):
    model, texts = tiny("llama"), rows(*LENGTHS)
    given = arguments("llama", texts, side)
    expected = model(**given).logits
    given["attention_mask"][2] = 0
    with torch.no_grad():
        model.get_input_embeddings().weight[0] = math.nan
    out = model(**given).logits
    kept = given["attention_mask"].bool()
    assert kept.any(1).tolist() == [True, True, False, True]
    assert_close(out[kept], expected[kept])
    assert out[2, given["input_ids"][2] != 0].isfinite().all()


def steps(name, given, bounds):
    """The arguments of a call cut into pieces: masks from the start, everything else piece by piece; an
    encoder's whole."""
    for start, stop in itertools.pairwise(bounds):
        piece = {}
        for key, x in given.items():
            whole = name in TWO_TEXTS and not key.startswith("decoder_")
            piece[key] = x if whole else x[:, (0 if "mask" in key else start) : stop]
        yield start, stop, piece


@GENERATING
def test_cached_equals_uncached_at_every_step(name):
    """A prompt, then two tokens, then one at a time; single texts are padded on the left."""
    model = tiny(name)
    lengths, side = ((12, 12), "right") if name in TWO_TEXTS else ((5, 12), "left")
    given = arguments(name, rows(*lengths), side)
    expected = model(**given, use_cache=False).logits
    cache = None
    for start, stop, piece in steps(name, given, [0, 4, 6, *range(7, 13)]):
        out = model(**piece, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        assert_close(out.logits, expected[:, start:stop])


@GENERATING
@pytest.mark.parametrize("beams", [1, 3])
def test_generate_is_the_same_cached_uncached_and_row_by_row(name, beams):
    model = tiny(name)
    side = "right" if name in TWO_TEXTS else "left"
    options = {
        "max_new_tokens": 8, "do_sample": False, "num_beams": beams, "eos_token_id": None,
        "output_scores": True, "return_dict_in_generate": True,
        "no_repeat_ngram_size": 1, "suppress_tokens": [PAD],  # a constant text would prove little
    }  # fmt: skip

    def generate(texts, **more):
        given = arguments(name, texts, side)
        out = model.generate(given["input_ids"], attention_mask=given["attention_mask"], **options | more)
        return out.sequences[:, -8:], torch.stack(out.scores)

    texts = rows(3, 9)
    tokens, scores = generate(texts)
    uncached_tokens, uncached_scores = generate(texts, use_cache=False)
    assert torch.equal(tokens, uncached_tokens)
    assert_close(scores, uncached_scores)
    for row, text in enumerate(texts):
        assert torch.equal(generate([text])[0][0], tokens[row])


@pytest.mark.parametrize("name", ["bert-decoder", "gpt2", "llama"])
def test_a_longer_text_leaves_its_beginning_alone(name):
    """The horizon is the model's and not the call's."""
    model, (text,) = tiny(name), rows(40)
    whole = model(**arguments(name, [text])).logits
    for length in (1, 7, 30):
        assert_close(model(**arguments(name, [text[:length]])).logits, whole[:, :length])


@EVERY
def test_gradients_reach_what_softmax_reaches(name):
    reached = {}
    for implementation in ("cosformer", "sdpa"):
        model = tiny(name, attn_implementation=implementation).train()
        model(**arguments(name, rows(*LENGTHS))).logits.square().sum().backward()
        reached[implementation] = {key for key, g in gradients(model).items() if g.abs().max() > 1e-9}
    assert reached["sdpa"] <= reached["cosformer"]
    # Softmax does not see a key's bias: it shifts all scores of a query alike.
    new = reached["cosformer"] - reached["sdpa"]
    assert all("key" in key or "k_proj" in key for key in new), new


def by_hand(q, k, v, horizon, causal, mask):
    """The equation pair by pair, one head: q (Tq, D), k (Tk, D), v (Tk, D), mask (Tk)."""
    out = torch.zeros(len(q), v.shape[1], dtype=v.dtype)
    for i in range(len(q)):
        seen = [j for j in range(len(k)) if mask[j] and (j <= i or not causal)]
        w = [q[i].relu() @ k[j].relu() * math.cos(math.pi / 2 * (i - j) / horizon) for j in seen]
        if seen and sum(w) > 0:
            out[i] = sum(w_j * v[j] for w_j, j in zip(w, seen, strict=True)) / sum(w)
    return out


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_attention_equals_the_equation(name):
    """From the input of a layer's attention to its output: bidirectional and padded; causal, rotary and
    with grouped heads."""
    model = tiny(name)
    module = model.get_submodule(report(model)[1].name)
    met = {}

    def look(module, args, kwargs, out):
        met.update(kwargs, hidden_states=args[0] if args else kwargs["hidden_states"], out=out[0])

    module.register_forward_hook(look, with_kwargs=True)
    given = arguments(name, rows(*LENGTHS), "left")
    model(**given)
    x = met["hidden_states"]
    if name == "bert":
        q, k, v = (
            f(x).unflatten(-1, (-1, 8)).transpose(1, 2) for f in (module.query, module.key, module.value)
        )
    else:
        q, k, v = (
            f(x).unflatten(-1, (-1, 8)).transpose(1, 2) for f in (module.q_proj, module.k_proj, module.v_proj)
        )
        q, k = apply_rotary_pos_emb(q, k, *met["position_embeddings"])
    heads = q.shape[1] // k.shape[1]
    for row, mask in enumerate(given["attention_mask"]):
        out = [
            by_hand(q[row, h], k[row, h // heads], v[row, h // heads], POSITIONS, name == "llama", mask)
            for h in range(q.shape[1])
        ]
        out = torch.cat(out, -1)
        assert_close(met["out"][row], out if name == "bert" else module.o_proj(out))


class TestHorizon:
    def test_comes_from_the_model_or_from_whoever_states_another(self):
        (text,) = rows(30)
        default, stated = tiny("llama"), tiny("llama", cosformer_horizon=100)
        outs = [model(**arguments("llama", [text])).logits for model in (default, stated)]
        enable(horizon=100)
        assert_close(default(**arguments("llama", [text])).logits, outs[1])
        enable(horizon=POSITIONS)
        assert_close(default(**arguments("llama", [text])).logits, outs[0])
        assert_close(stated(**arguments("llama", [text])).logits, outs[1])
        assert (outs[0] - outs[1]).abs().max() > 1e-3

    def test_is_saved_with_the_configuration(self, tmp_path):
        tiny("llama", cosformer_horizon=100).save_pretrained(tmp_path)
        model = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="cosformer")
        assert [use.detail for use in report(model)] == ["causal self-attention with horizon 100"] * 2

    def test_of_images_is_the_number_of_patches_and_one(self):
        assert report(tiny("vit"))[0].detail == "self-attention with horizon 17"


def test_a_decoder_can_be_asked_to_look_both_ways():
    model, texts = tiny("llama"), rows(6)
    given = arguments("llama", texts) | {"use_cache": False}
    changed = given | {"input_ids": given["input_ids"].clone()}
    changed["input_ids"][0, -1] = 3
    for both, is_causal in ((False, None), (False, True), (True, False)):
        moved = (
            model(**given, is_causal=is_causal).logits[:, 0]
            - model(**changed, is_causal=is_causal).logits[:, 0]
        )
        assert bool(moved.abs().max() > 1e-3) == both


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing_gives_the_same_gradients(reentrant):
    """Cross-attention still knows where its queries stand when a layer is run again."""
    model = tiny("bart").train()
    given = arguments("bart", rows(*LENGTHS)) | {"use_cache": False}
    model(**given).logits.square().sum().backward()
    expected = gradients(model)
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    model(**given).logits.square().sum().backward()
    found = gradients(model)
    assert found.keys() == expected.keys()
    for key in expected:
        assert_close(found[key], expected[key])


def test_threads_do_not_share_the_position_of_their_queries():
    """Another thread decodes between a layer's self-attention and its cross-attention."""
    model = tiny("bart")
    given = arguments("bart", rows(9))
    expected = model(**given, use_cache=False).logits
    others = []

    def interrupt(module, args, out):
        if threading.current_thread() is threading.main_thread():
            short = {key: x[:, :4] for key, x in given.items()}
            other = threading.Thread(target=lambda: others.append(model(**short, use_cache=False).logits))
            other.start()
            other.join()

    model.get_decoder().layers[1].self_attn.register_forward_hook(interrupt)
    cache = None
    for start, stop, piece in steps("bart", given, [0, 5, 6, 9]):
        out = model(**piece, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        assert_close(out.logits, expected[:, start:stop])
    assert len(others) == 3


@pytest.mark.parametrize(("name", "backend"), [("llama", "aot_eager"), ("bart", "eager")])
def test_compiles_whole(name, backend):
    model = tiny(name)
    given = arguments(name, rows(*LENGTHS)) | {"use_cache": False}
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    assert_close(compiled(**given).logits, model(**given).logits)


def test_runs_in_half_precision_and_under_autocast():
    given = arguments("bert", rows(*LENGTHS))
    model = tiny("bert").bfloat16()
    assert model(**given).logits.dtype == torch.bfloat16
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model.float()(**given).logits.isfinite().all()


def test_without_transformers_the_error_says_what_to_install(monkeypatch):
    monkeypatch.delitem(sys.modules, "cosformer.integrations.transformers")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(
        ImportError, match=r'needs Hugging Face transformers, 5.17 or later: pip install "tran'
    ):
        importlib.import_module("cosformer.integrations.transformers")
