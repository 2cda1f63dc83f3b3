"""Published figures, to stand beside ours in columns of their own: never in one column with other code's.

Of Qin et al., "cosFormer: Rethinking Softmax in Attention" (ICLR 2022), unless a name says otherwise.
"""

# Table 1: the loss of pretraining, then accuracy in per cent on QQP, SST-2 and MNLI.
SIMILARITY: dict[str, tuple[float, float, float, float]] = {
    "identity": (2.343, 84.23, 76.26, 58.27),
    "leaky_relu": (2.246, 84.8, 78.33, 74.26),
    "relu": (1.993, 88.86, 89.9, 77.86),
    "softmax": (1.915, 88.41, 92.31, 79.15),
}
# Table 3: accuracy in per cent on SST-2 and IMDB, and the average with QQP, MNLI and Amazon.
FINE_TUNING: dict[str, tuple[float, float, float]] = {
    "softmax": (92.31, 92.86, 85.7),
    "performer": (50.91, 60.36, 56.28),
    "linear": (84.63, 91.48, 78.0),
    "longformer": (88.65, 91.14, 83.17),
    "cosformer": (91.05, 92.95, 85.25),
}

# Table 2: WikiText-103, perplexity on valid / test.
WIKITEXT103 = {
    "softmax": "24.5 / 26.2",
    "cosformer": "23.5 / 23.1",
    "linear": "28.7 / 30.2",
    "rfa": "25.8 / 27.5",
}

# enwik8, 12 layers of width 512, bits per character.
ENWIK8 = {"softmax": "1.137", "linear": "1.207"}

# Table 4: Long Range Arena, accuracy in per cent on ListOps, Text, Retrieval, Image and Pathfinder.
ARENA: dict[str, tuple[float, float, float, float, float]] = {
    "softmax": (36.37, 64.27, 57.46, 42.44, 71.4),
    "cosformer": (37.9, 63.41, 61.36, 43.17, 70.33),
    "linear": (16.13, 65.9, 53.09, 42.34, 75.3),
    "local": (15.82, 52.98, 53.39, 41.46, 66.63),
    "reformer": (37.27, 56.1, 53.4, 38.07, 68.5),
    "sparse": (17.07, 63.58, 59.59, 44.24, 71.71),
    "sinkhorn": (33.67, 61.2, 53.83, 41.23, 67.45),
    "linformer": (35.7, 53.94, 52.27, 38.56, 76.34),
    "performer": (18.01, 65.4, 53.82, 42.77, 77.05),
    "synthesizer": (36.99, 61.68, 54.67, 41.61, 69.45),
    "longformer": (35.63, 62.85, 56.89, 42.22, 69.71),
    "bigbird": (36.05, 64.02, 59.29, 40.83, 74.87),
}
# As published; Sinkhorn's is not the mean of its tasks, which is 51.48.
ARENA_AVERAGES = {
    "softmax": 54.39, "cosformer": 55.23, "linear": 50.55, "local": 46.06, "reformer": 50.67, "sparse": 51.24,
    "sinkhorn": 51.29, "linformer": 51.36, "performer": 51.41, "synthesizer": 52.88, "longformer": 53.46,
    "bigbird": 55.01,
}  # fmt: skip
# The average when others ran the same tasks in their own code.
ARENA_ELSEWHERE = {
    "FLARE++": {"softmax": 57.51, "cosformer": 58.89, "linear": 53.09},
    "TransNormer": {"softmax": 57.37, "cosformer": 62.11},
}

# Table 5: the byte-level text model, steps a second on an A6000 at 1K / 2K / 3K / 4K; x: out of memory.
SPEED: dict[str, dict[str, str]] = {
    "training": {
        "softmax": "6.95 / 2.23 / x / x",
        "local": "13.45 / 6.71 / 4.32 / 3.09",
        "linformer": "14.75 / 7.09 / 4.52 / 3.21",
        "reformer": "11.58 / 4.98 / 2.94 / 1.95",
        "sinkhorn": "11.09 / 5.57 / 3.68 / 2.68",
        "synthesizer": "6.36 / 2.01 / x / x",
        "bigbird": "6.46 / 3.2 / 2.13 / 1.53",
        "linear": "11.86 / 5.54 / 3.53 / 2.56",
        "performer": "14 / 6.49 / 4.1 / 2.94",
        "longformer": "4.4 / 1.3 / x / x",
        "sparse": "6.77 / 2.2 / x / x",
        "cosformer": "12.27 / 5.72 / 3.62 / 2.64",
    },
    "inference": {
        "softmax": "25.37 / 7.83 / x / x",
        "local": "57.73 / 33.19 / 23.36 / 17.79",
        "linformer": "70.09 / 39.1 / 27.05 / 20.62",
        "reformer": "44.21 / 21.58 / 12.74 / 8.37",
        "sinkhorn": "43.29 / 23.58 / 16.53 / 12.7",
        "synthesizer": "20.89 / 6.24 / x / x",
        "bigbird": "20.96 / 11.5 / 8.12 / 6.15",
        "linear": "67.85 / 38.24 / 26.28 / 19.98",
        "performer": "74.15 / 42.31 / 29.5 / 22.44",
        "longformer": "22.99 / 6.72 / x / x",
        "sparse": "24.87 / 7.5 / x / x",
        "cosformer": "58.82 / 33.45 / 22.77 / 17.42",
    },
}
