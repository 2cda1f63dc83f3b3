"""MNLI: entailment, contradiction or neither."""

from recipes._fine_tuning import table

TABLE = table("mnli", rows=392_702)
build = TABLE.build
