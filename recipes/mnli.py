"""MNLI: entailment, contradiction or neither."""

from recipes._fine_tuning import COMPARED, table

TABLE = table("mnli", rows=392_702, tiny=COMPARED)
build = TABLE.build
