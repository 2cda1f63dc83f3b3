"""`python -m cosformer` is the command `cosformer`."""

import sys

from cosformer.cli import main

sys.exit(main())
