"""What the fine-tuning recipes share: at `small` and `paper` the sizes of `recipes/mlm.py`, so that its
weights fit; `tiny` has sizes and tokens of its own, and starts from nothing.

    build("small", initial="runs/mlm-small-cosformer-0")

Without `initial` a model learns its task from nothing. `paper`: ten passes at a low rate over the task, as is
usual for RoBERTa; the cosFormer paper does not say more.
"""

from cosformer.training.recipes import Settings, Table

BASE = Table(
    task="sst2",
    shared={
        "model": {"position": "learned"}, "schedule": "polynomial", "weight_decay": 0.01, "epsilon": 1e-6,
    },
    tiny={
        "task_settings": {
            "length": 64, "tokens": "bpe", "bpe_size": 4096, "bpe_corpus": "wikitext2", "official": False,
        },
        "model": {
            "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "initializer_range": 0.1,
        },
        "steps": 300, "batch_size": 32, "learning_rate": 3e-3, "warmup": 20, "eval_every": 50,
        "save_every": 150, "eval_batch_size": 250, "data": "loader",
    },
    small={
        "task_settings": {"tokens": "bpe", "bpe_size": 16_384, "bpe_corpus": "wikitext2"},
        "model": {
            "hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8, "dropout": 0.1,
            "classifier_dropout": 0.1, "max_position_embeddings": 512,
        },
        "batch_size": 32, "learning_rate": 1e-4, "eval_every": 250, "save_every": 250, "eval_batch_size": 128,
        "steps": 5000, "warmup": 300, "patience": 8, "precision": "bf16",
    },
    paper={
        "task_settings": {"tokens": "bpe", "bpe_size": 50_264, "bpe_corpus": "wikitext103"},
        "model": {
            "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "dropout": 0.1,
            "classifier_dropout": 0.1, "max_position_embeddings": 512,
        },
        "batch_size": 32, "learning_rate": 2e-5, "eval_every": 500, "save_every": 500, "eval_batch_size": 128,
        "steps": 20_000, "warmup": 1200, "patience": 10, "precision": "bf16",
    },
)  # fmt: skip

# For `tiny` where two sentences are to be compared: in one sequence, so small a model loses in the mean what
# they share. It reads them apart, and is wider, for the random directions of tokens to be told apart too.
COMPARED: Settings = {
    "task_settings": {**BASE.tiny["task_settings"], "apart": True},
    "model": {
        "hidden_size": 128, "intermediate_size": 32, "position": "none", "initializer_range": 0.05,
        "classifier_dropout": 0.3, "pair_difference": "absolute",
    },
    "steps": 400, "learning_rate": 1e-3,
}  # fmt: skip

# The same where rows are few, against learning them by heart: tokens keep large random directions, in so many
# dimensions that what two sentences share stands out, and rare words are tokens of their own.
FEW: Settings = {
    "task_settings": {**COMPARED["task_settings"], "bpe_size": 16_384},
    "model": {
        **COMPARED["model"], "hidden_size": 512, "initializer_range": 0.02, "embedding_range": 1.0,
        "dropout": 0.1, "classifier_dropout": 0.5,
    },
    "steps": 80, "learning_rate": 5e-4,
}  # fmt: skip


def table(task: str, rows: int, *, length: int = 256, tiny: Settings | None = None) -> Table:
    """For a task with so many training rows: ten passes over them, or the base's steps if those are fewer."""
    changes: dict[str, Settings] = {"tiny": tiny or {}}
    for scale, base in (("small", BASE.small), ("paper", BASE.paper)):
        steps = min(10 * rows // base["batch_size"], base["steps"])
        changes[scale] = {
            "steps": steps,
            "warmup": steps * 6 // 100,
            "eval_every": min(steps // 10, base["eval_every"]),
            "task_settings": {**base["task_settings"], "length": length},
        }
    return BASE.variant(task, **changes)
