"""Where data comes from and where it is kept: sources, caches, tokens, worker processes."""
