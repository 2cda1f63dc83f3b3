"""The encoder-decoder learns to reverse a sequence."""

from cosformer.tasks.synthetic.reverse import END, START
from cosformer.training.recipes import Table

TABLE = Table(
    task="reverse",
    shared={
        "model": {
            "position": "learned", "max_position_embeddings": 32, "num_attention_heads": 4,
            "bos_token_id": START, "decoder_start_token_id": START, "eos_token_id": END,
        },
        "weight_decay": 0.01, "batch_size": 64, "learning_rate": 2e-3, "beta2": 0.999, "eval_batch_size": 250,
    },
    tiny={
        "task_settings": {"letters": 3, "shortest": 1, "longest": 2, "train_rows": 2000},
        "model": {"hidden_size": 32, "num_hidden_layers": 1},
        "batch_size": 32, "steps": 150, "warmup": 10, "eval_every": 150, "save_every": 150,
    },
    small={
        "model": {"hidden_size": 128, "num_hidden_layers": 2},
        "steps": 1500, "warmup": 200, "eval_every": 250,
    },
    paper={
        "task_settings": {"longest": 31},
        "model": {"hidden_size": 256, "num_hidden_layers": 3},
        "steps": 10_000, "warmup": 500, "learning_rate": 1e-3, "eval_every": 1000,
    },
)  # fmt: skip
build = TABLE.build
