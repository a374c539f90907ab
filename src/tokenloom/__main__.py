"""`python -m tokenloom`, the command line."""

import sys

from tokenloom.cli import main

sys.exit(main())
