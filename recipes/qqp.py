"""QQP: do two questions ask the same?."""

from recipes._fine_tuning import table

TABLE = table("qqp", rows=363_846)
build = TABLE.build
