"""Complete runs as functions: `build(scale, attention, **overrides)` of each file returns one.

A file holds one table of settings for its task, at three scales: `tiny` (seconds on a CPU), `small` (minutes
on one H200) and `paper` (what was published, as far as the models here can be set so; each file says where
they cannot). Models of `tiny` are so narrow that initial weights of the usual deviation, 0.02, would hold
them up for longer than they are trained: where that matters, `initializer_range` is greater. All mechanisms
share a table but for what it says by their names. Files that begin with an underscore are not recipes: others
share them.
"""
