"""Fine-tuning: GLUE and reviews."""
