"""What may be decided about a report."""

from __future__ import annotations

import pytest

from tokenloom.errors import ConfigError
from tokenloom.report.options import ReportOptions


@pytest.mark.parametrize("wrong", [{"num_samples_shown": -1}, {"seed": -1}, {"global_batch_size": 0}])
def test_wrong_numbers_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        ReportOptions(**wrong)


def test_nothing_must_be_decided():
    assert ReportOptions().statistics is None
