"""RTE: entailment."""

from recipes._fine_tuning import COMPARED, table

TABLE = table("rte", rows=2_490, tiny=COMPARED)
build = TABLE.build
