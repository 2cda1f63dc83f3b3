"""Everything the demonstration depends on."""

from dataclasses import dataclass

MECHANISMS = {"cosformer": "cosFormer", "softmax": "softmax"}


@dataclass(frozen=True)
class Settings:
    """The defaults fit two CPU cores and five minutes."""

    hidden_size: int = 128
    layers: int = 4
    heads: int = 4
    windows: tuple[tuple[int, ...], ...] = (
        (2, 4, 8, 16),
        (4, 8, 32, 64),
        (8, 32, 128, 512),
        (16, 64, 512, 512),
    )
    """Of the heads of each layer of the cosFormer: near ones first, far ones last."""
    length: int = 512
    batch: int = 4
    longest: int = 65536
    """Positions that softmax is made for; the cosFormer has no end."""
    learning_rate: float = 3e-3
    steps: int = 800
    """At most; fewer where the machine would need longer than `seconds` for them."""
    seconds: float = 150.0
    """For the training of both models together."""
    held_out: int = 65536
    """Bytes that both are judged by, from files they were not trained on."""
    seed: int = 0
    lengths: tuple[int, ...] = (512, 1024, 2048, 4096, 8192, 16384)
    """Contexts that both models read against the clock."""
    far: int = 65536
    """Where the size of the caches is given."""
    map_length: int = 96
    sample_tokens: int = 300


# For tests, and for looking at the page while working on it: seconds, and no quality to speak of.
TINY = Settings(
    hidden_size=32,
    layers=2,
    heads=2,
    windows=((2, 4), (8, 64)),
    length=64,
    batch=2,
    longest=4096,
    steps=10,
    held_out=1024,
    lengths=(64, 128, 256),
    far=1024,
    map_length=24,
    sample_tokens=8,
)
