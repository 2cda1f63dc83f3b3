"""The demonstration's models as a recipe: small language models over the bytes of Python's standard library,
for two CPU cores. The same for both attentions, except that cosFormer has a window in every head, and
softmax rotary positions; neither adds parameters.
"""

from typing import Any

from cosformer.training import Run
from cosformer.training.recipes import Table


def _windows(*of_layers: list[int]) -> dict[str, Any]:
    """The windows of the heads of each layer of the cosFormer, from narrow to wide."""
    return {"model": {"position": "none", "attention_parameters": [{"windows": w} for w in of_layers]}}


_SMALL = {
    "task_settings": {"length": 512, "held_out": 65536},
    # For softmax, whose positions have a greatest length; cosFormer has windows in every head and no limit.
    "model": {
        "hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4,
        "max_position_embeddings": 65536,
    },
    "steps": 800, "batch_size": 4,
}  # fmt: skip
_FAR = _windows([2, 4, 8, 16], [4, 8, 32, 64], [8, 32, 128, 512], [16, 64, 512, 512])
TABLE = Table(
    task="python",
    shared={
        "model": {"initializer_range": 0.06},  # larger than the default, for a run of few steps
        "learning_rate": 3e-3, "weight_decay": 0.01, "eval_batch_size": 8, "log_every": 10, "device": "cpu",
        "data": "loader",
    },
    tiny={
        "task_settings": {"length": 64, "held_out": 1024},
        "model": {
            "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
            "max_position_embeddings": 4096,
        },
        "steps": 10, "batch_size": 2,
    },
    small=_SMALL,
    paper=_SMALL,  # there is no published setting
    attention={"softmax": {"model": {"position": "rotary"}}},
    attention_at={
        ("cosformer", "tiny"): _windows([2, 4], [8, 64]), ("cosformer", "small"): _FAR,
        ("cosformer", "paper"): _FAR,
    },
)  # fmt: skip


def build(scale: str = "small", attention: str = "cosformer", **overrides: Any) -> Run:
    """Warm-up, checkpoints and the one evaluation follow from the number of steps."""
    steps = overrides.get("steps") or TABLE.build(scale, attention, **overrides).steps
    paced = {"warmup": max(1, steps // 10), "eval_every": steps, "save_every": max(1, steps // 4)}
    return TABLE.build(scale, attention, **paced | overrides)
