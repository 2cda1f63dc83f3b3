"""The command `cosformer`: thin over plain functions that a notebook can call as well."""

from cosformer.cli.main import main

__all__ = ["main"]
