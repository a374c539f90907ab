"""Options that say what to look at."""

from __future__ import annotations

import argparse

from tests.inspect.targets import write_pair

from tokenloom.cli.target_options import add_target, target_of


def test_words_and_settings_become_a_target(tmp_path):
    parser = argparse.ArgumentParser()
    add_target(parser)
    prefix = write_pair(tmp_path / "web")
    options = parser.parse_args([prefix, "--sequence-length", "8", "--seed", "5", "--tokenizer", "byte"])
    target = target_of(options)
    assert (target.name, target.settings.sequence_length, target.settings.seed) == (prefix, 8, 5)
    assert target.num_positions == 7
    assert target.tokenizer.kind == "byte"
