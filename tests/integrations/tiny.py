"""Small models of every architecture that is verified, with weights large enough (std 0.25) that a
broken cache or a mask without effect shows, in float64."""

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from torch import Tensor
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForMaskedLM,
    BertLMHeadModel,
    BertModel,
    EncoderDecoderModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    RobertaConfig,
    RobertaForMaskedLM,
    ViTConfig,
    ViTForImageClassification,
)

PAD, VOCABULARY, POSITIONS = 0, 50, 64
TOKENS = {"pad_token_id": PAD, "bos_token_id": 1, "eos_token_id": 2, "vocab_size": VOCABULARY}
SIZES = TOKENS | {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": POSITIONS,
}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def bert(**options):
    return BertForMaskedLM(BertConfig(**SIZES | NO_DROPOUT | options))


def bert_decoder(**options):
    return BertLMHeadModel(BertConfig(**SIZES | NO_DROPOUT | {"is_decoder": True} | options))


def roberta(**options):
    return RobertaForMaskedLM(RobertaConfig(**SIZES | NO_DROPOUT | options))


def gpt2(**options):
    no_dropout = dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0)
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": POSITIONS}
    return GPT2LMHeadModel(GPT2Config(**TOKENS | sizes | no_dropout | options))


def llama(**options):
    return LlamaForCausalLM(LlamaConfig(**SIZES | {"num_key_value_heads": 2} | options))


def bart(**options):
    sizes = {f"{side}_{name}": n for side in ("encoder", "decoder")
             for name, n in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 40))}  # fmt: skip
    config = BartConfig(
        **TOKENS | sizes | {"d_model": 32, "dropout": 0.0, "max_position_embeddings": POSITIONS} | options,
        decoder_start_token_id=2, forced_eos_token_id=None,
    )  # fmt: skip
    return BartForConditionalGeneration(config)


def pair(decoder, **options):
    """BERT, and a decoder with cross-attention to it."""
    encoder = BertModel(BertConfig(**SIZES | NO_DROPOUT | options), add_pooling_layer=False)
    model = EncoderDecoderModel(encoder=encoder, decoder=decoder(add_cross_attention=True, **options))
    model.config.decoder_start_token_id, model.config.pad_token_id = 2, PAD
    model.generation_config.decoder_start_token_id, model.generation_config.pad_token_id = 2, PAD
    return model


def vit(**options):
    sizes = {name: SIZES[name] for name in list(SIZES)[4:8]}
    return ViTForImageClassification(ViTConfig(image_size=16, patch_size=4, **sizes | NO_DROPOUT | options))


@dataclass(frozen=True)
class Host:
    build: Callable
    attentions: int
    sides: tuple[str, ...] = ()  # where its positions allow padding
    generates: bool = False


HOSTS = {
    "bert": Host(bert, 2, ("left", "right")),
    "bert-decoder": Host(bert_decoder, 2, ("left", "right"), generates=True),
    "roberta": Host(roberta, 2, ("left", "right")),
    "gpt2": Host(gpt2, 2, ("left", "right"), generates=True),
    "llama": Host(llama, 2, ("left", "right"), generates=True),
    "bart": Host(bart, 6, ("right",), generates=True),
    "bert-to-bert": Host(partial(pair, bert_decoder), 6, ("right",), generates=True),
    "bert-to-gpt2": Host(partial(pair, gpt2), 6, ("right",), generates=True),
    "vit": Host(vit, 2),
}
LENGTHS = (3, 11, 1, 7)  # of texts in one batch
TWO_TEXTS = ("bart", "bert-to-bert", "bert-to-gpt2")


def large(model):
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.25)
    return model.double().eval()


def tiny(name: str, **options):
    return large(HOSTS[name].build(**{"attn_implementation": "cosformer"} | options))


def rows(*lengths: int, seed: int = 1) -> list[Tensor]:
    """Texts without special tokens, [length] each."""
    random = torch.Generator().manual_seed(seed)
    return [torch.randint(3, VOCABULARY, (length,), generator=random) for length in lengths]


def padded(texts: list[Tensor], side: str) -> tuple[Tensor, Tensor]:
    """Ids and mask [B, T]."""
    width = max(map(len, texts))
    ids, mask = (torch.zeros(len(texts), width, dtype=torch.int64) for _ in range(2))
    for row, text in enumerate(texts):
        place = slice(width - len(text), width) if side == "left" else slice(len(text))
        ids[row, place], mask[row, place] = text, 1
    return ids, mask


def arguments(name: str, texts: list[Tensor], side: str = "right") -> dict[str, Tensor]:
    """What the model is called with; the texts are also the targets of an encoder-decoder, whose
    sources are others, of other lengths."""
    if name == "vit":
        random = torch.Generator().manual_seed(1)
        return {"pixel_values": torch.randn(len(texts), 3, 16, 16, generator=random).double()}
    ids, mask = padded(texts, side)
    if name in TWO_TEXTS:
        source, source_mask = padded([text.flip(0).repeat(2)[:-1] for text in texts], side)
        return {
            "input_ids": source, "attention_mask": source_mask,
            "decoder_input_ids": ids, "decoder_attention_mask": mask,
        }  # fmt: skip
    given = {"input_ids": ids, "attention_mask": mask}
    if name != "roberta":  # which counts its positions from the ids
        given["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)
    return given


def assert_close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@contextmanager
def refused(*fragments, error=ValueError):
    """What stands in the block is refused, in these words among others."""
    with pytest.raises(error) as caught:
        yield
    for fragment in fragments:
        assert fragment in str(caught.value)
