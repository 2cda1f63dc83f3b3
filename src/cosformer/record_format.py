"""What those who write records of runs and those who read them have to agree on. Imports nothing."""

FORMAT = "cosformer run 1"

# Settings of a run that say where and how fast it is made, not what comes out: they may change when it is
# resumed, and two runs that differ in nothing else are the same experiment.
NON_SEMANTIC_FIELDS = ("device", "data", "workers", "keep", "log_every", "save_every", "sequence_parallel",
                       "shard")  # fmt: skip
