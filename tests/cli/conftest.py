"""A small saved language model, once for all tests of the command line."""

import pytest
import torch

from cosformer.models import CosformerConfig, CosformerForCausalLM, byte_tokenizer


@pytest.fixture(scope="session")
def saved(tmp_path_factory):
    """A folder with a model of large random weights, so that every token of the past matters."""
    folder = tmp_path_factory.mktemp("saved")
    torch.manual_seed(0)
    config = CosformerConfig.paper(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=256,
        position="rotary",
        initializer_range=0.25,
    )
    CosformerForCausalLM(config).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder
