"""The demonstration: a small cosFormer and the same model with softmax, trained side by side."""
