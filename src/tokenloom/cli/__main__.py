"""`python -m tokenloom.cli`."""

import sys

from tokenloom.cli import main

sys.exit(main())
