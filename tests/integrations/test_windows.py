"""Windows for the heads of other people's models."""

import math

import pytest
import torch
from torch.testing import assert_close
from transformers import AutoModelForCausalLM

from cosformer.integrations import transformers as drop_in
from cosformer.integrations.transformers import enable, report
from tests.integrations.tiny import HOSTS, LENGTHS, POSITIONS, TWO_TEXTS, arguments, padded, rows, tiny

WINDOWS = {name: (2, 5) if name == "llama" else (2, 5, None, 1) for name in HOSTS}
DECODERS = [name for name, host in HOSTS.items() if host.generates and name not in TWO_TEXTS]


@pytest.mark.parametrize("causal", [True, False])
def test_equals_the_equation(causal):
    """The function itself, two query heads to a key head, under left padding."""
    model = tiny("llama" if causal else "bert")
    module = model.get_submodule(report(model)[0].name)
    kv_heads = 2 if causal else 4
    windows = (3, None) if causal else (3, None, 1, 7)
    enable(windows=windows)
    q, k, v = (torch.randn(2, h, 9, 8, dtype=torch.float64) for h in (4, kv_heads, kv_heads))
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[0, :4] = False
    out, _ = drop_in._attend(module, q, k, v, mask, position_ids=(mask.cumsum(1) - 1).clamp_min(0))
    for b in range(2):
        for h in range(4):
            own = h * kv_heads // 4
            reach = windows[own] or POSITIONS
            for i in range(9):
                seen = [j for j in range(9) if mask[b, j] and abs(i - j) < reach and (j <= i or not causal)]
                w = [q[b, h, i].relu() @ k[b, own, j].relu() * math.cos(math.pi / 2 * (i - j) / reach)
                     for j in seen]  # fmt: skip
                total = sum(w)
                expected = torch.zeros(8, dtype=torch.float64)
                if seen and total > 0:
                    expected = sum(x * v[b, own, j] for x, j in zip(w, seen, strict=True)) / total
                assert_close(out[b, i, h], expected)


@pytest.mark.parametrize("name", HOSTS)
def test_padded_texts_are_as_each_alone(name):
    enable(windows=WINDOWS[name])
    model = tiny(name)
    texts = rows(*LENGTHS)
    if not HOSTS[name].sides:
        assert model(**arguments(name, texts)).logits.isfinite().all()
        return
    for side in HOSTS[name].sides:
        together = model(**arguments(name, texts, side)).logits
        for row, text in enumerate(texts):
            alone = model(**arguments(name, [text], side)).logits[0]
            n, width = len(alone), together.shape[1]
            assert_close(together[row, width - n :] if side == "left" else together[row, :n], alone)
    enable()
    plain = model(**arguments(name, texts)).logits
    assert (plain - together).abs().max() > 1e-3, "windows make a difference"


@pytest.mark.parametrize("name", DECODERS)
def test_cached_decoding_is_as_without_a_cache(name):
    enable(windows=WINDOWS[name])
    model = tiny(name)
    ids, mask = padded(rows(*LENGTHS), "left")
    results = [
        model.generate(ids, attention_mask=mask, max_new_tokens=12, do_sample=False, use_cache=cached)
        for cached in (True, False)
    ]
    assert torch.equal(*results)


def test_where_every_head_has_a_window_a_text_has_no_bound():
    """Rotary positions do not end: the text goes on past max_position_embeddings."""
    enable(windows=(2, 8))
    model = tiny("llama")
    (text,) = rows(POSITIONS + 20)
    out = model(**arguments("llama", [text])).logits
    tail = arguments("llama", [text[-15:]])  # two layers of 8 see no more
    tail["position_ids"] = tail["position_ids"] + len(text) - 15
    assert_close(out[:, -1:], model(**tail).logits[:, -1:])
    enable(windows=(2, None))
    with pytest.raises(ValueError, match="the horizon is 64"):
        model(**arguments("llama", [text]))


def test_a_configuration_may_have_its_own(tmp_path):
    enable(windows=(4, 4))
    model = tiny("llama", cosformer_windows=[2, None])
    detail = "causal self-attention with horizon 64 and windows 2, None"
    assert {use.detail for use in report(model)} == {detail}
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="cosformer")
    assert {use.detail for use in report(again)} == {detail}
    (text,) = rows(30)
    assert_close(
        again.double()(**arguments("llama", [text])).logits, model(**arguments("llama", [text])).logits
    )
    assert report(tiny("llama"))[0].detail == "causal self-attention with windows 4, 4"


def test_cross_attention_has_none():
    enable(windows=(2, 3, 4, 5))
    details = [use.detail for use in report(tiny("bart")) if "encoder_attn" in use.name]
    assert details == ["cross-attention with horizon 64"] * 2


def test_windows_that_cannot_be():
    with pytest.raises(ValueError, match=r"windows\[0\] must be at least 1"):
        enable(windows=(0, 4))
    with pytest.raises(TypeError, match="windows must be a list or tuple"):
        enable(windows=4)
    enable(windows=(2, 4, 8))
    with pytest.raises(ValueError, match="one entry for each of the 2 key-value heads, but got 3"):
        tiny("llama")(**arguments("llama", rows(5)))
