"""What the demonstration trains, measures and shows, and for how long."""

from dataclasses import dataclass

from cosformer.demo import recipe
from cosformer.training import Run


@dataclass(frozen=True)
class Settings:
    """The defaults fit two CPU cores and five minutes."""

    scale: str = "small"
    """Of the recipe."""
    steps: int = 800
    """At most; fewer where the machine would need longer than `seconds` for them."""
    seconds: float = 150.0
    """For the training of both models together."""
    seed: int = 0
    lengths: tuple[int, ...] = (512, 1024, 2048, 4096, 8192, 16384)
    """Contexts that both models read against the clock."""
    far: int = 65536
    """Where the size of the caches is given."""
    map_length: int = 96
    sample_tokens: int = 300

    def run(self, mechanism: str, steps: int | None = None) -> Run:
        return recipe.build(self.scale, mechanism, steps=steps or self.steps, seed=self.seed)


# For tests, and for looking at the page while working on it: seconds, and no quality to speak of.
TINY = Settings(scale="tiny", steps=10, lengths=(64, 128, 256), far=1024, map_length=24, sample_tokens=8)
