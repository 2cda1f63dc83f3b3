"""RTE: entailment."""

from recipes._fine_tuning import FEW, table

TABLE = table("rte", rows=2_490, tiny=FEW)
build = TABLE.build
