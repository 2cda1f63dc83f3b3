"""Citations among arXiv papers: the stand-in for retrieval, with its settings, under its own name.

`tiny` reads the first 64 tokens of byte-pair encoding; byte by byte, so small a model stays at one half for
longer than a minute. Softmax likes larger initial weights and rates better; cosFormer then hardly leaves one
half.
"""

from recipes.retrieval import TABLE as RETRIEVAL

TABLE = RETRIEVAL.variant(
    "citations",
    tiny={
        "task_settings": {
            "length": 64, "tokens": "bpe", "bpe_size": 4096, "bpe_corpus": "wikitext2", "official": False,
        },
        "model": {
            "hidden_size": 64, "intermediate_size": 32, "position": "none", "initializer_range": 0.02,
            "dropout": 0.2,
        },
        "steps": 200, "batch_size": 128, "learning_rate": 1.5e-3, "eval_every": 40,
    },
)  # fmt: skip
build = TABLE.build
