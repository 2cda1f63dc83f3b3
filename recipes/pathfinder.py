"""Pathfinder of the Long Range Arena: are two dots joined by a dashed line?

`paper`: the arena's original settings (4 layers of width 32, feed-forward 32, 4 heads, batch 512, rate 1e-3
with cosine decay, 200 epochs). There queries, keys and values are 16 wide, here as wide as the model.
A transformer may stay at one half for a long time before it moves: where the discs lie tells 65 % of the
pictures apart, but neither disc does by itself, and the mean of a thousand pixels hardly shows two. So
`small` pools by maximum, has no dropout, and its embeddings of pixels begin on a line at 0.3: two layers of
width 64 so have 70 % with cosFormer and 72 % with softmax after 20,000 steps (docs/results.md), having left
one half within 2,000. With the mean, softmax, cosFormer and windows of that size stayed there for 2,000 to
7,500 steps. On pictures of 14 x 14 by the same rules (two snakes of four paddles; two layers of width 32;
1,500 steps of 64; cosFormer; trials without a record) one half was left after 700 steps; after 500 with a
convolution over a row of pixels, which ended at 65.8 % where there were 60.4 % without, and not at all in
1,300 with a dropout of 0.1; larger initial weights, a rate of 0.003, rotary positions, four layers and fewer
pictures, seen more often, all left it later. `tiny` has pictures of 8 x 8 pixels, and is learned in a
minute.
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
