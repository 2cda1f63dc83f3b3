"""What a person at the terminal sees: as the command line has it."""

import sys

try:
    from cosformer.cli.parser import Parser
    from cosformer.terminal import Progress, plain, seconds, size, times
except ModuleNotFoundError as error:
    if error.name != "cosformer":
        raise
    sys.exit("The package cosformer is not installed; run `pip install -e .` in the repository.")

__all__ = ["Parser", "Progress", "plain", "seconds", "size", "times"]
