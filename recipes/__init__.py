"""Complete runs as functions: `build(scale, attention, **overrides)` of each file returns one.

A file holds one table of settings for its task, at three scales: `tiny` (seconds on a CPU), `small` (minutes
on one H200) and `paper` (what was published, as far as the models here can be set so; each file says where
they cannot). All mechanisms share a table but for what it says by their names. Files that begin with an
underscore are not recipes: others share them.
"""
