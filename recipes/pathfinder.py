"""Pathfinder of the Long Range Arena: are two dots joined by a dashed line?

`paper`: the arena's original settings (4 layers of width 32, feed-forward 32, 4 heads, batch 512, rate 1e-3
with cosine decay, 200 epochs). There queries, keys and values are 16 wide, here as wide as the model.
A transformer may stay at one half for a long time before it moves: where the discs lie tells 65 % of the
pictures apart, but neither disc does by itself, and the mean of a thousand pixels hardly shows two. So
`small` pools by maximum, and its embeddings of pixels begin on a line at 0.3. On pictures of 14 x 14 by the
same rules (two snakes of four paddles; two layers of width 32; trials without a record) the mean and the
first token stayed at one half for 2,200 steps of 64 with softmax; the maximum left it after 800 with softmax
and cosFormer and after 400 with windows, for 0.64 to 0.67 at the end. On 32 x 32 cosFormer of that size had
not left it after 2,900 steps of 24 pictures; with the mean, learned positions and rates of 0.0005 to 0.002,
softmax, cosFormer and windows of width 64 stayed there for 2,000 to 7,500 steps of 128, also with a
convolution over a row of pixels. `tiny` has pictures of 8 x 8 pixels, and is learned in a minute.
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
            "embedding_range": 0.3, "ordered_tokens": True, "pooling": "max",
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
