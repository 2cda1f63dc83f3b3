"""The defaults of configurations, by version: what a saved one means that does not say everything.

transformers writes a configuration without the values that are its own defaults, and an earlier version
of the family had fewer fields. A file says with which defaults it was written (`defaults_version`; 1 where
it says nothing), and is read with those. A change of a default is a new version here.

1: the paper's model. 2: windows for all heads, gate and norms. 3: the same, with one layer of six a softmax
that sees 1,024 tokens: the best model of constant memory that the study has found (docs/results.md). 4: the
same, with rotary positions in bidirectional models, which had none. 5: the same, with rotary positions also
in causal models whose attention was chosen and has no windows to tell the order of tokens, which had none.
"""

from typing import Any

# The fields in which the paper's own model differs from a model with cosFormer in every layer.
PAPER: dict[str, Any] = {
    "attention_parameters": {}, "qk_norm": False, "output_norm": False, "output_gate": None,
    "position": "none",
}  # fmt: skip
# Tokens that the heads of a cosFormer see, in every layer, where nothing else is said.
_WINDOWS = (2, 4, 8, 16, 64, 128, 512, 1024)
_SOFTMAX_EVERY = 6  # layers

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
        "conv_size": None,
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
        "ordered_tokens": False,
        "head_loss": "cross_entropy",
        "loss_samples": None,
        "loss_chunk": None,
        "use_cache": True,
        "tie_word_embeddings": True,
        "pad_token_id": 256,
        "bos_token_id": 257,
        "eos_token_id": 258,
        "decoder_start_token_id": 257,
        **PAPER,
    }
}
VERSIONS[2] = VERSIONS[1] | {
    "attention_parameters": None,  # `parameters` says which
    "qk_norm": True,
    "output_norm": True,
    "output_gate": "silu",
}
VERSIONS[3] = VERSIONS[2] | {"attention": None}  # `mixture` says which
VERSIONS[4] = VERSIONS[3] | {"position": None}  # the configuration says which, by `causal`
VERSIONS[5] = VERSIONS[4]
CURRENT = max(VERSIONS)


def windows(kv_heads: int) -> list[int]:
    """One for each key-value head, spread evenly over those of the study's eight heads; a single head has
    the widest."""
    last = len(_WINDOWS) - 1
    return [_WINDOWS[round(last * n / (kv_heads - 1)) if kv_heads > 1 else last] for n in range(kv_heads)]


def parameters(attention: str | list[str], kv_heads: int) -> Any:
    """`attention_parameters` where none are given: windows for cosFormer, nothing for other mechanisms."""
    if isinstance(attention, list):
        return [parameters(name, kv_heads) for name in attention]
    return {"windows": windows(kv_heads)} if attention == "cosformer" else {}


def mixture(layers: int, kv_heads: int) -> tuple[Any, Any]:
    """`attention` and `attention_parameters` where neither is given: cosFormer with windows, and in the
    middle of each six layers a softmax that sees as far as the widest of them. Fewer than four layers have
    none: it would be more than one in four."""
    count = max(1, layers // _SOFTMAX_EVERY) if layers >= 4 else 0
    places = {(2 * n + 1) * layers // (2 * count) for n in range(count)}
    names = ["softmax" if n in places else "cosformer" for n in range(layers)]
    if not places:
        return "cosformer", parameters("cosformer", kv_heads)
    widest = {"windows": [_WINDOWS[-1]] * kv_heads}
    return names, [widest if name == "softmax" else parameters(name, kv_heads) for name in names]


def recommended(width: int, kv_heads: int, intermediate: int | None = None) -> dict[str, Any]:
    """Fields of the model that this library recommends, as docs/results.md found it, at the sizes of another:
    windows for all heads, a gate, and norms of outputs, queries and keys. The feed-forward is narrower by the
    weights of the gate, so that there are as many parameters as without; one with fewer stays as it is."""
    chosen = {name: VERSIONS[CURRENT][name] for name in ("output_gate", "output_norm", "qk_norm")}
    inner = intermediate or 4 * width
    return {
        "position": "none",
        "attention_parameters": parameters("cosformer", kv_heads),
        **chosen,
        "intermediate_size": inner - width // 2 if inner > width // 2 else inner,
    }


def completed(saved: dict[str, Any]) -> dict[str, Any]:
    """A saved configuration with every field that it leaves to the defaults of its version."""
    version = saved.get("defaults_version", 1)
    if version not in VERSIONS:
        raise ValueError(
            f"defaults_version must be one of {', '.join(map(str, VERSIONS))}, but the configuration has "
            f"{version!r}: it was saved by a later version of cosformer, which is needed to read it."
        )
    made = {**VERSIONS[version], **saved, "defaults_version": CURRENT}
    if version == 1 and made["attention_parameters"] is None:
        made["attention_parameters"] = {}  # which None meant then
    if version == 4 and made["position"] is None and made["causal"]:
        made["position"] = "none"
    return made
