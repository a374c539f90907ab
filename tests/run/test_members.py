"""Sources as datasets: settings, and pairs that are opened when they are needed."""

from __future__ import annotations

import pytest
from tests.run.folders import make_run
from tests.support import StandInTokenizer

from tokenloom.errors import ConfigError
from tokenloom.run.members import Member, Reading, SourceData, run_config


def test_settings_of_the_run_and_of_the_samples(tmp_path):
    lock = make_run(
        tmp_path, head="order = 1\nseed = 7\n[samples]\neod_mask_loss = true\nallow_data_mismatch = true\n"
    ).lock
    config = run_config(lock, 16, StandInTokenizer(), Reading(mmap=False))
    assert (config.sequence_length, config.eod_mask_loss, config.mmap_bin_files) == (16, True, False)
    assert (config.allow_data_mismatch, config.allow_tokenizer_mismatch) == (True, False)
    assert config.create_attention_mask is False


def test_a_member_opens_what_a_sample_needs(tmp_path):
    run = make_run(tmp_path)
    config = run_config(run.lock, 16, run.tokenizer, Reading())
    data = SourceData(run.lock, 0, Reading(), config)
    member = Member(data, run.lock, config, denied=(), identity="test")
    known = run.timeline.walk_of(0, 0)
    member.add_walk(0, first_pair=known.first_pair, last_pair=known.last_pair, num_windows=known.num_windows)
    assert member.walks == {0}
    assert data.pairs.num_open == 0
    first = member.ask(lambda dataset: dataset.sample(0))
    assert data.pairs.num_open == 1
    again = member.ask(lambda dataset: dataset.batch([0, 0]))
    assert again["tokens"][1].tolist() == first["tokens"].tolist()
    with pytest.raises(ConfigError):
        run_config(run.lock, 0, run.tokenizer, Reading())
