"""What cosFormer cannot do for a host model is refused with its reason, and never ignored."""

from types import SimpleNamespace

import pytest
import torch
import transformers
from torch import nn
from transformers import AttentionInterface, StaticCache
from transformers.masking_utils import create_causal_mask, create_chunked_causal_mask

from cosformer.integrations.hosts import Settings
from cosformer.integrations.transformers import enable, report, verify
from tests.integrations.tiny import HOSTS, SIZES, TWO_TEXTS, arguments, large, refused, rows, tiny

IDS = torch.stack(rows(6, 6))


class TestT5:
    def build(self, **options):
        config = transformers.T5Config(
            vocab_size=50, d_model=32, d_kv=8, d_ff=40, num_layers=2, num_heads=4, **options
        )
        return large(transformers.T5ForConditionalGeneration(config))

    def test_is_refused_for_its_position_bias(self):
        model = self.build(attn_implementation="cosformer")
        with refused("'t5'", "position bias", "another attn_implementation"):
            model(input_ids=IDS, decoder_input_ids=IDS)

    def test_switching_it_is_found_out(self):
        """On transformers 5.17 it has no effect and raises nothing."""
        model = self.build()
        model.set_attn_implementation("cosformer")
        assert not any(use.runs for use in report(model))
        with refused("6 of 6 attention modules", "encoder.block.0", "position bias"):
            verify(model)


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("bert", "attention_probs_dropout_prob"),
        ("roberta", "attention_probs_dropout_prob"),
        ("vit", "attention_probs_dropout_prob"),
        ("gpt2", "attn_pdrop"),
        ("llama", "attention_dropout"),
        ("bart", "attention_dropout"),
    ],
)
def test_attention_dropout_in_training(name, option):
    model, given = tiny(name, **{option: 0.1}), arguments(name, rows(4, 6))
    model(**given)
    model.train()
    with refused("attention dropout 0.1", option, "model.eval()"):
        model(**given)


@pytest.mark.parametrize("name", HOSTS)
def test_output_attentions(name):
    model = tiny(name)
    with refused("output_attentions", "never forms", '"eager"'):
        model(**arguments(name, rows(4, 6)), output_attentions=True)


class TestMasks:
    @pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
    @pytest.mark.parametrize("dtype", [torch.bool, torch.float64], ids=str)
    def test_over_pairs(self, name, dtype):
        mask = torch.ones(2, 1, 6, 6, dtype=dtype).tril()
        with refused("[2, 1, 6, 6]", "only padding", "[batch, length]"):
            tiny(name)(input_ids=IDS, attention_mask=mask)

    def test_with_a_sliding_window(self):
        config = transformers.MistralConfig(**SIZES, num_key_value_heads=2, sliding_window=4)
        config._attn_implementation = "cosformer"
        model = large(transformers.MistralForCausalLM(config))
        enable(also=["mistral"])
        with refused("sliding", "4 wide", "sliding_window=None"):
            model(input_ids=IDS)

    def test_with_a_window_in_the_call(self):
        with refused("sliding", "sliding_window=None"):
            tiny("llama")(input_ids=IDS, sliding_window=4)

    def test_in_chunks(self):
        config = tiny("llama").config
        config.attention_chunk_size = 4
        embeds = torch.zeros(2, 6, 32)
        with refused("chunked", "4 wide"):
            create_chunked_causal_mask(config, embeds, None, None)

    @pytest.mark.parametrize("kind", ["or_mask_function", "and_mask_function"])
    def test_of_a_function_of_their_own(self, kind):
        config, embeds = tiny("llama").config, torch.zeros(2, 6, 32)
        with refused("mask function of its own", "only padding"):
            create_causal_mask(config, embeds, None, None, **{kind: lambda batch, head, q, k: k >= 0})

    def test_that_leave_out_the_cache(self):
        model = tiny("llama")
        cache = model(input_ids=IDS).past_key_values
        with refused("covers 1 positions, and there are 7 keys", "what is in the cache"):
            model(input_ids=IDS[:, :1], attention_mask=IDS[:, :1] > 0, past_key_values=cache)

    def test_longer_than_the_text(self):
        mask = torch.ones(2, 8, dtype=torch.int64)
        with refused("places for 8 keys", "longer than the text"):
            tiny("llama")(input_ids=IDS, attention_mask=mask, use_cache=False)


class TestPacking:
    RESTART = torch.tensor([[0, 1, 2, 0, 1, 2]])

    @pytest.mark.parametrize("name", ["llama", "gpt2", "bert-decoder"])
    @pytest.mark.parametrize("use_cache", [False, True])
    def test_by_positions_that_restart(self, name, use_cache):
        """transformers itself looks for them only where there is no cache."""
        model, given = tiny(name), {"input_ids": IDS, "position_ids": self.RESTART, "use_cache": use_cache}
        with refused("packed", "attention_mask"):
            model(**given)
        one_text = torch.ones_like(IDS)
        assert model(**given, attention_mask=one_text).logits.isfinite().all()

    @pytest.mark.parametrize("key", ["cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "seq_idx"])
    def test_by_bounds(self, key):
        with refused("packed", "attention_mask"):
            tiny("llama")(input_ids=IDS[:1], **{key: torch.tensor([0, 3, 6])})

    @pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "bert-decoder"])
    def test_padding_that_a_position_counts(self, name):
        """Rectified queries and keys under rotary positions know where they stand: 4 off without a word."""
        model, (text,) = tiny(name), rows(6)
        ids = torch.cat([torch.zeros(1, 3, dtype=text.dtype), text[None]], 1)
        mask = (torch.arange(9) >= 3).long()[None]
        with refused("padded on the left", "positions count the padding", "cumsum(-1) - 1"):
            model(input_ids=ids, attention_mask=mask)
        positions = (mask.cumsum(-1) - 1).clamp_min(0)
        out = model(input_ids=ids, attention_mask=mask, position_ids=positions)
        torch.testing.assert_close(out.logits[:, 3:], model(input_ids=text[None]).logits)
        if "past_key_values" in out:
            more = {"input_ids": ids[:, -1:], "attention_mask": torch.cat([mask, mask[:, -1:]], 1)}
            with refused("padded on the left", "positions count the padding"):
                model(**more, past_key_values=out.past_key_values)
        mask[0, 5] = 0
        with refused("padding between the tokens of a row", "Pad at the ends"):
            model(input_ids=ids, attention_mask=mask, position_ids=positions)

    def test_padding_that_a_model_leaves_out_itself(self):
        model, (text,) = tiny("roberta"), rows(6)
        ids = torch.cat([torch.zeros(1, 3, dtype=text.dtype), text[None]], 1)
        given = {"input_ids": ids, "attention_mask": (ids != 0).long()}
        torch.testing.assert_close(model(**given).logits[:, 3:], model(input_ids=text[None]).logits)
        with refused("positions count the padding", "give no position_ids"):
            model(**given, position_ids=torch.arange(9)[None])

    def test_left_padding_of_an_encoder_by_itself(self):
        encoder = tiny("bart").get_encoder()
        with refused("padded on the left", "Pad on the right"):
            encoder(input_ids=IDS, attention_mask=torch.tensor([[0, 0, 1, 1, 1, 1], [1] * 6]))

    def test_under_compile_a_mask_is_asked_for(self):
        """There transformers cannot look at the positions, and takes every text for packed."""
        compiled = torch.compile(tiny("llama"), fullgraph=True, backend="eager")
        with refused("under torch.compile", "all ones where nothing is padded", error=Exception):
            compiled(input_ids=IDS, use_cache=False)


@pytest.mark.parametrize(
    ("key", "value", "fragments"),
    [
        ("softcap", 30.0, ("softcap", "no scores")),
        ("s_aux", torch.zeros(4), ("s_aux", "sinks")),
        ("position_bias", torch.zeros(1, 4, 6, 6), ("position_bias", "no scores")),
        ("head_mask", torch.ones(4), ("head_mask", "heads")),
        ("cache", object(), ("paged cache", "generate()")),
        ("temperature", 2.0, ("'temperature'", "knows nothing", "Leave it out")),
    ],
)
def test_further_demands(key, value, fragments):
    model = tiny("llama")
    with refused("LlamaAttention", *fragments):
        model(input_ids=IDS, **{key: value})
    assert model(input_ids=IDS, **{key: None}).logits.isfinite().all()


def test_what_is_no_demand_passes():
    given = {"num_items_in_batch": 3, "output_hidden_states": True, "output_attentions": False}
    assert tiny("llama")(input_ids=IDS, **given).logits.isfinite().all()


class TestStaticCaches:
    def test_handed_in(self):
        model = tiny("llama")
        cache = StaticCache(config=model.config, max_cache_len=16)
        for mask in (None, torch.ones_like(IDS), torch.ones(2, 16)):
            with refused("places for 16 keys", "static cache", "dynamic cache"):
                model(input_ids=IDS, attention_mask=mask, past_key_values=cache)

    def test_in_generate(self):
        with refused("static cache", "dynamic cache"):
            tiny("llama").generate(IDS, max_new_tokens=4, cache_implementation="static")


class TestHorizon:
    def test_a_text_beyond_it(self):
        model = tiny("llama", max_position_embeddings=16)
        assert model(input_ids=torch.stack(rows(17))).logits.isfinite().all()
        with refused("18 positions", "horizon is 16", "config.cosformer_horizon", "enable(horizon=...)"):
            model(input_ids=torch.stack(rows(18)))
        model.config.cosformer_horizon = 17
        assert model(input_ids=torch.stack(rows(18))).logits.isfinite().all()

    def test_a_cached_text_beyond_it(self):
        model = tiny("llama", max_position_embeddings=8)
        with refused("10 positions", "horizon is 8"):
            model.generate(IDS, max_new_tokens=8, eos_token_id=None)

    def test_a_source_beyond_it(self):
        model = tiny("bart", cosformer_horizon=8)
        with refused("10 positions", "horizon is 8"):
            model(input_ids=torch.stack(rows(10)), decoder_input_ids=IDS[:1])

    def test_a_model_that_states_none(self):
        config = SimpleNamespace(model_type="bert")
        with refused("config.cosformer_horizon", "enable(horizon=...)"):
            Settings().horizon_of(config)
        assert Settings(horizon=7.0).horizon_of(config) == 7

    @pytest.mark.parametrize("value", [0, -3, float("nan")])
    def test_values_that_are_none(self, value):
        with refused("horizon", "positive finite"):
            enable(horizon=value)
        model = tiny("llama", cosformer_horizon=value)
        with refused("cosformer_horizon", "positive finite"):
            model(input_ids=IDS)


class TestModels:
    def test_not_verified(self):
        config = transformers.Qwen2Config(**SIZES, num_key_value_heads=2)
        config._attn_implementation = "cosformer"
        model = large(transformers.Qwen2ForCausalLM(config))
        with refused("'qwen2'", "bart, bert, gpt2, llama, roberta, vit", "enable(also=['qwen2'])"):
            model(input_ids=IDS)
        with refused("2 of 2", "'qwen2'"):
            verify(model)
        enable(also=["qwen2"])
        verify(model)
        assert model(input_ids=IDS).logits.isfinite().all()

    def test_settings(self):
        with refused("backend", "chunked", "'fast'"):
            enable(backend="fast")
        with refused("also must be a list", "'qwen2'", error=TypeError):
            enable(also="qwen2")


class TestDirections:
    def test_causal_asked_of_an_encoder(self):
        with refused("is_causal=True", "is_decoder=True"):
            tiny("bert")(input_ids=IDS, is_causal=True)

    def test_both_ways_with_a_cache(self):
        model = tiny("llama")
        cache = model(input_ids=IDS).past_key_values
        with refused("not causal", "1 queries for 7 keys"):
            model(input_ids=IDS[:, :1], past_key_values=cache, is_causal=False)

    def test_a_module_that_does_not_say(self):
        module = nn.Module()
        module.config = tiny("llama").config
        q = torch.zeros(1, 2, 3, 8)
        with refused("is_causal"):
            AttentionInterface()["cosformer"](module, q, q, q, None)

    def test_scaling_that_does_not_cancel(self):
        module = tiny("llama").model.layers[0].self_attn
        q = torch.zeros(1, 2, 3, 8)
        with refused("-1.0", "only a positive factor cancels"):
            AttentionInterface()["cosformer"](module, q, q, q, None, scaling=-1.0)


class TestCrossAttention:
    @pytest.mark.parametrize("name", TWO_TEXTS)
    @pytest.mark.parametrize("side", ["encoder", "decoder"])
    def test_padded_on_the_left(self, name, side):
        given = arguments(name, rows(4, 6))
        key = "attention_mask" if side == "encoder" else "decoder_attention_mask"
        given[key] = given[key].flip(1)
        own = ("decoder", "Pad them on the right") if side == "decoder" else ("ad on the right",)
        with refused("padded on the left", *own):
            tiny(name)(**given)

    @pytest.mark.parametrize("name", TWO_TEXTS)
    @pytest.mark.parametrize("side", ["encoder", "decoder"])
    def test_padded_between_tokens(self, name, side):
        given = arguments(name, rows(4, 6))
        given["attention_mask" if side == "encoder" else "decoder_attention_mask"][1, 2] = 0
        with refused("padding between the tokens of a row", "Pad at the ends"):
            tiny(name)(**given)

    @pytest.mark.parametrize("name", ["bert-to-bert", "bert-to-gpt2"])
    def test_a_source_whose_positions_leave_padding_out(self, name):
        """Its own encoder takes it on the left; between two texts it would shift the distance."""
        given = arguments(name, rows(4, 6))
        mask = given["attention_mask"] = given["attention_mask"].flip(1)
        with refused("encoder", "padded on the left", "Pad them on the right"):
            tiny(name)(**given, position_ids=(mask.cumsum(1) - 1).clamp_min(0))

    def test_padded_on_the_left_in_a_compiled_graph(self):
        given = arguments("bart", rows(4, 6)) | {"use_cache": False}
        compiled = torch.compile(tiny("bart"), fullgraph=True, backend="eager")
        assert compiled(**given).logits.isfinite().all()
        given["attention_mask"] = given["attention_mask"].flip(1)
        with refused("padded on the left", error=RuntimeError):
            compiled(**given)

    def test_by_itself(self):
        """Without the self-attention of its layer nothing says where its queries stand."""
        layer = tiny("bart").model.decoder.layers[0]
        x = torch.randn(1, 4, 32).double()
        alone = ("cross-attention", "self-attention of its own layer")
        with refused(*alone):
            layer.encoder_attn(x, key_value_states=x)
        layer.self_attn(x)
        layer.encoder_attn(x, key_value_states=x)
        with refused(*alone):
            layer.encoder_attn(x, key_value_states=x)
        layer.self_attn(x[:, :1])
        with refused(*alone):
            layer.encoder_attn(x, key_value_states=x)
