"""A plugin of pytest: a test that would fork this process is skipped.

The allocators of sanitizers have locks that a fork does not wait for. A child that is forked while another thread holds
one waits for ever, and torch's loaders fork workers while they have threads. Other ways to start processes are fine.
"""

import os
from typing import NoReturn

import pytest


def _skip() -> NoReturn:
    pytest.skip("under sanitizers nothing forks, see sanitize/no_forks.py")


os.fork = _skip
