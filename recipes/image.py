"""Image of the Long Range Arena: CIFAR-10 in grey, pixel by pixel.

`paper`: the arena's original settings (one layer of width 128, feed-forward 128, 8 heads, batch 256, rate
5e-4 with cosine decay, 200 epochs). There queries, keys and values are 64 wide, here as wide as the model.
"""

from cosformer.training.recipes import Table

_EPOCH = 45_000 // 256

TABLE = Table(
    task="image",
    shared={"model": {"position": "learned"}},
    tiny={
        "task_settings": {"side": 8, "official": False},
        "model": {
            "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "initializer_range": 0.1,
        },
        "steps": 500, "batch_size": 64, "learning_rate": 3e-3, "warmup": 30, "eval_every": 250,
        "save_every": 250, "eval_batch_size": 250,
    },
    small={
        "model": {
            "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8, "intermediate_size": 512,
            "dropout": 0.1,
        },
        "steps": 10_000, "batch_size": 128, "learning_rate": 1e-3, "warmup": 500, "weight_decay": 0.05,
        "eval_every": 500, "eval_batch_size": 250, "precision": "bf16",
    },
    paper={
        "model": {
            "hidden_size": 128, "num_hidden_layers": 1, "num_attention_heads": 8, "intermediate_size": 128,
            "dropout": 0.3,
        },
        "steps": 200 * _EPOCH, "batch_size": 256, "learning_rate": 5e-4, "schedule": "cosine",
        "warmup": _EPOCH, "eval_every": 5 * _EPOCH, "save_every": 5 * _EPOCH, "eval_batch_size": 250,
    },
)  # fmt: skip
build = TABLE.build
