"""Compares with every independent implementation that is installed, and records the agreement."""

from tests.attention.oracles import record

record()
