"""Training: the only way anything here is trained. A `Run` says everything, `train` makes a record of it."""

from cosformer.training import recipes
from cosformer.training.main import Interrupted, evaluate, train
from cosformer.training.pending import Diverged
from cosformer.training.pretraining import pretraining
from cosformer.training.run import Run
from cosformer.training.status import best

__all__ = [
    "Diverged",
    "Interrupted",
    "Run",
    "best",
    "evaluate",
    "pretraining",
    "recipes",
    "train",
]
