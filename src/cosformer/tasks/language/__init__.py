"""Language models: bytes, words, masked tokens."""
