"""RTE: entailment."""

from recipes._fine_tuning import table

TABLE = table("rte", rows=2_490)
build = TABLE.build
