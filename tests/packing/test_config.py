"""Settings of packing, and which stages need tokens."""

from __future__ import annotations

import pytest

from tokenloom.errors import ConfigError
from tokenloom.packing.config import PackingConfig, stages_with_tokens

torch = pytest.importorskip("torch")


def test_settings_are_positive():
    with pytest.raises(ConfigError, match="expected max_seqlen_per_dp_cp_rank of at least 1, found 0"):
        PackingConfig(max_seqlen_per_dp_cp_rank=0)


@pytest.mark.parametrize(
    ("vpp", "layout", "expected"),
    [
        (None, None, [[True], [False], [True]]),
        (2, None, [[True, False], [False, False], [False, True]]),
        (2, [[["x"], ["x"]], [["x"], ["x", "mtp"]], [["x"], ["loss"]]], [[True, False], [False, True], [False, True]]),
    ],
)
def test_first_last_and_mtp_stages_need_tokens(vpp, layout, expected):
    config = PackingConfig(
        max_seqlen_per_dp_cp_rank=8, virtual_pipeline_model_parallel_size=vpp, pipeline_model_parallel_layout=layout
    )
    assert [stages_with_tokens(config, pp_rank=rank, pp_size=3) for rank in range(3)] == expected
