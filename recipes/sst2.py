"""SST-2: the sentiment of phrases."""

from recipes._fine_tuning import table

TABLE = table("sst2", rows=67_349)
build = TABLE.build
