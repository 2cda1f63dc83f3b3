"""Pathfinder of the Long Range Arena: are two dots joined by a dashed line?

`paper`: the arena's original settings (4 layers of width 32, feed-forward 32, 4 heads, batch 512, rate 1e-3
with cosine decay, 200 epochs). There queries, keys and values are 16 wide, here as wide as the model.
A transformer may stay at one half for a long time before it moves: `tiny` has pictures of 8 x 8 pixels, and
begins to move in a minute. On pictures of 12 x 12 (two layers of width 32, one seed, trials without a record)
softmax did not move in 1,200 steps with embeddings that begin at 0.02, and did after 500 at 0.3; cosFormer
moved after 240 and 320, with windows after 200 and 380. So `small` begins at 0.3. On longer snakes (12 x 12,
three paddles, 2,500 steps, trials without a record) softmax moved where positions were rotary and embeddings
of pixels began on a line (`ordered_tokens`), with three seeds of three: 0.61 to 0.63. With either alone it
stayed at one half (one seed each).
"""

from cosformer.training.recipes import Table

_EPOCH = 160_000 // 512

TABLE = Table(
    task="pathfinder",
    shared={"model": {"position": "learned"}},
    tiny={
        "task_settings": {"side": 8, "train_rows": 40_000, "valid_rows": 2000, "test_rows": 10_000},
        "model": {
            "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "initializer_range": 0.1,
        },
        "steps": 800, "batch_size": 64, "learning_rate": 2e-3, "warmup": 50, "eval_every": 400,
        "save_every": 400, "eval_batch_size": 250,
    },
    small={
        "model": {
            "hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 8, "intermediate_size": 256,
            "embedding_range": 0.3,
        },
        "steps": 20_000, "batch_size": 128, "learning_rate": 1e-3, "warmup": 1000, "weight_decay": 0.01,
        "eval_every": 1000, "save_every": 1000, "eval_batch_size": 250, "precision": "bf16",
    },
    paper={
        "model": {
            "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 32,
            "dropout": 0.1,
        },
        "steps": 200 * _EPOCH, "batch_size": 512, "learning_rate": 1e-3, "schedule": "cosine",
        "warmup": _EPOCH, "eval_every": 5 * _EPOCH, "save_every": 5 * _EPOCH, "eval_batch_size": 250,
    },
)  # fmt: skip
build = TABLE.build
