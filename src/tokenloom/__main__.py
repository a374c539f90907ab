"""Runs the command line: `python -m tokenloom`."""

import sys

from tokenloom.cli import main

sys.exit(main())
