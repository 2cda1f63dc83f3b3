"""Complete runs as functions: each says all its settings and leaves a record under results/."""
