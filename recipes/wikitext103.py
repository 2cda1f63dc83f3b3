"""WikiText-103, word by word: perplexity of the next one.

`paper`: Table 2 of the cosFormer paper (length 512, 150,000 updates, 16 layers of width 1,024, feed-forward
4,096, dropout 0.3), with the optimiser of the same group's later recipe (128 sequences, Adam (0.9, 0.98),
rate 5e-4, inverse square root after 8,000 steps of warm-up, weight decay 0.01). The paper's adaptive input
and softmax are not modelled: words in and out share one full matrix. `tiny` has pieces of words, of which
fewer steps see enough; its perplexity is per word, too. At the scale `small` a cosFormer has windows, a gate
and norms, as the study of language models found them (docs/results.md).
"""

from cosformer.training.recipes import Table

TABLE = Table(
    task="wikitext103",
    shared={
        "model": {"position": "learned"}, "task_settings": {"length": 512}, "schedule": "inverse_sqrt",
        "weight_decay": 0.01,
    },
    tiny={
        "task_settings": {"length": 128, "tokens": "bpe", "bpe_size": 1024, "official": False},
        "model": {
            "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "initializer_range": 0.05,
        },
        "steps": 200, "batch_size": 16, "learning_rate": 3e-3, "warmup": 10, "eval_every": 100,
        "save_every": 100,
    },
    small={
        "model": {
            "hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8, "dropout": 0.1,
            "position": "rotary",
        },
        "steps": 10_000, "batch_size": 64, "accumulation": 8, "learning_rate": 5e-4, "warmup": 2000,
        "eval_every": 1000, "save_every": 1000, "eval_batch_size": 8, "precision": "bf16",
    },
    paper={
        "model": {
            "hidden_size": 1024, "num_hidden_layers": 16, "num_attention_heads": 8, "intermediate_size": 4096,
            "dropout": 0.3,
        },
        "steps": 150_000, "batch_size": 128, "accumulation": 16, "learning_rate": 5e-4, "warmup": 8000,
        "eval_every": 5000, "save_every": 1000, "eval_batch_size": 8, "precision": "bf16",
    },
    recommended_at=("small",),
)  # fmt: skip
build = TABLE.build
