"""What comparisons of datasets with megatron-core share; a module asks for it with `usefixtures`."""

from __future__ import annotations

import warnings

import pytest


@pytest.fixture
def quiet():
    """Both sides warn of ambiguous pad ids and short data sets; that is tested elsewhere."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
