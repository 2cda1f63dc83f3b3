"""What a demonstration leaves behind, made up: the page can be looked at without training anything."""

import math

LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)


def _contexts(power, cache):
    return [
        {
            "length": t,
            "seconds": 0.05 * (t / 512) ** power,
            "memory_bytes": 2_000_000 * t // 512,
            "token_s": 0.002 * (t / 512) ** (power - 1),
            "cache_bytes": cache(t),
        }
        for t in LENGTHS
    ]


def _learned(bits):
    curve = [(10 * i, 2.0 * i, bits + 4 * math.exp(-i / 8)) for i in range(1, 41)]
    return {"curve": curve, "bits": bits, "tokens_per_s": 9000.0, "parameters": 830_000}


def _maps(wide):
    weights = [[math.exp(-(i - j) / wide) if j <= i else 0.0 for j in range(32)] for i in range(32)]
    return [{"head": h, "weights": weights} for h in (0, 3)]


RECORD = {
    "settings": {"layers": 4, "hidden_size": 128, "far": 65536},
    "machine": {"name": "A CPU", "threads": 2, "torch": "2.13.0", "cosformer": "0.1.0"},
    "training": {
        "steps": 400,
        "tokens": 1_638_400,
        "models": {"cosformer": _learned(2.41), "softmax": _learned(2.36)},
    },
    "costs": {
        "cosformer": {
            "contexts": _contexts(1.0, lambda t: 135_000),
            "training_memory_bytes": 60_000_000,
            "far_cache_bytes": 135_000,
        },
        "softmax": {
            "contexts": _contexts(1.8, lambda t: 4096 * t),
            "training_memory_bytes": None,
            "far_cache_bytes": 4096 * 65536,
        },
    },
    "maps": {"text": "x" * 32, "cosformer": _maps(20), "softmax": _maps(4)},
    "samples": {
        "prompt": "def f(",
        "temperature": 0.7,
        "cosformer": "x):\n    return <x>",
        "softmax": "self):\n" * 9,
    },
}
