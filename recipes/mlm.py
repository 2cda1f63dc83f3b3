"""Masked-language-model pretraining; the fine-tuning recipes take its weights (`initial`).

`paper`: the cosFormer paper's (RoBERTa-base, 50,000 updates of 512 x 512 tokens, Adam with epsilon 1e-6, rate
5e-4, polynomial decay after 3,000 steps of warm-up, dropout 0.1, weight decay 0.01). Its text and GPT-2's
vocabulary are not at hand: here byte-pair encoding of as many tokens is learned from WikiText-103.
"""

from cosformer import attention
from cosformer.training.recipes import Table

TABLE = Table(
    task="mlm",
    shared={
        "model": {"position": "learned"}, "schedule": "polynomial", "weight_decay": 0.01, "epsilon": 1e-6,
    },
    tiny={
        "task_settings": {"corpus": "python", "length": 256, "tokens": "bytes"},
        "model": {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2},
        "steps": 100, "batch_size": 8, "learning_rate": 5e-3, "warmup": 10, "eval_every": 100,
        "save_every": 50, "eval_batch_size": 64,
    },
    small={
        "task_settings": {"corpus": "wikitext2", "length": 512, "tokens": "bpe", "bpe_size": 16_384},
        "model": {"hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8, "dropout": 0.1},
        "steps": 10_000, "batch_size": 128, "learning_rate": 5e-4, "warmup": 1000, "eval_every": 1000,
        "save_every": 1000, "eval_batch_size": 64, "precision": "bf16", "workers": 8,
    },
    paper={
        "task_settings": {"corpus": "wikitext103", "length": 512, "tokens": "bpe", "bpe_size": 50_264},
        "model": {
            "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "dropout": 0.1,
        },
        "steps": 50_000, "batch_size": 512, "accumulation": 8, "learning_rate": 5e-4, "warmup": 3000,
        "eval_every": 2000, "save_every": 1000, "eval_batch_size": 32, "precision": "bf16", "workers": 8,
    },
    # Documents of a row are kept apart, where the mechanism can do so.
    attention={
        name: {"task_settings": {"documents": "joined"}}
        for name in attention.names()
        if not attention.traits(name).cu_seqlens
    },
)  # fmt: skip
build = TABLE.build
