"""Constants shared by the writers and readers of records of runs. Imports nothing."""

FORMAT = "cosformer run 1"

# Settings of a run that change where and how fast it runs, not its result: they may change when it is
# resumed, and two runs that differ in nothing else are the same experiment.
NON_SEMANTIC_FIELDS = ("device", "data", "workers", "keep", "log_every", "save_every", "sequence_parallel",
                       "shard")  # fmt: skip
