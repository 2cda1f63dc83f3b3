"""QQP: do two questions ask the same?."""

from recipes._fine_tuning import COMPARED, table

TABLE = table("qqp", rows=363_846, tiny=COMPARED)
build = TABLE.build
