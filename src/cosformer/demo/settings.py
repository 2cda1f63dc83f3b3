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
    """At most; fewer where they would take longer than `seconds`."""
    seconds: float = 150.0
    """For the training of both models together."""
    seed: int = 0
    lengths: tuple[int, ...] = (512, 1024, 2048, 4096, 8192, 16384)
    """Lengths of the contexts that both models are timed on."""
    far: int = 65536
    """Context length for which cache sizes are given."""
    map_length: int = 96
    sample_tokens: int = 300

    def run(self, mechanism: str, steps: int | None = None) -> Run:
        return recipe.build(self.scale, mechanism, steps=steps or self.steps, seed=self.seed)


# For tests, and for working on the page: takes seconds, and learns nothing.
TINY = Settings(scale="tiny", steps=10, lengths=(64, 128, 256), far=1024, map_length=24, sample_tokens=8)
