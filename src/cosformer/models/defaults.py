"""The defaults of configurations, by version: what a saved one means that does not say everything.

transformers writes a configuration without the values that are its own defaults, and an earlier version
of the family had fewer fields. A file says with which defaults it was written (`defaults_version`; 1 where
it says nothing), and is read with those. A change of a default is a new version here.
"""

from typing import Any

VERSIONS: dict[int, dict[str, Any]] = {
    1: {
        "vocab_size": 264,
        "hidden_size": 256,
        "num_hidden_layers": 4,
        "num_decoder_layers": None,
        "num_attention_heads": 4,
        "num_key_value_heads": None,
        "intermediate_size": None,
        "max_position_embeddings": 2048,
        "horizon": None,
        "attention": "cosformer",
        "attention_parameters": None,
        "conv_size": None,
        "qk_norm": False,
        "output_norm": False,
        "output_gate": None,
        "position": "none",
        "position_parameters": None,
        "causal": None,
        "feed_forward": "gelu",
        "norm": "layer",
        "pre_norm": True,
        "norm_eps": 1e-5,
        "bias": True,
        "dropout": 0.0,
        "pooling": "mean",
        "pair_difference": "signed",
        "classifier_dropout": 0.0,
        "initializer_range": 0.02,
        "embedding_range": None,
        "head_loss": "cross_entropy",
        "loss_samples": None,
        "use_cache": True,
        "tie_word_embeddings": True,
        "pad_token_id": 256,
        "bos_token_id": 257,
        "eos_token_id": 258,
        "decoder_start_token_id": 257,
    }
}
CURRENT = max(VERSIONS)


def completed(saved: dict[str, Any]) -> dict[str, Any]:
    """A saved configuration with every field that it leaves to the defaults of its version."""
    version = saved.get("defaults_version", 1)
    if version not in VERSIONS:
        raise ValueError(
            f"defaults_version must be one of {', '.join(map(str, VERSIONS))}, but the configuration has "
            f"{version!r}: it was saved by a later version of cosformer, which is needed to read it."
        )
    return {**VERSIONS[version], **saved, "defaults_version": CURRENT}
