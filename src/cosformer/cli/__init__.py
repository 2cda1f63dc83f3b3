"""The command `cosformer`: a thin layer over functions that can be called from Python as well."""

from cosformer.cli.main import main

__all__ = ["main"]
