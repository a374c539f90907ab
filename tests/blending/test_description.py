"""What ranks compare before they build together."""

from __future__ import annotations

from dataclasses import dataclass

from tests.support import make_config

from tokenloom.blending.builder import describe_settings
from tokenloom.datasets.config import GPTDatasetConfig
from tokenloom.datasets.gpt import GPTDataset


@dataclass
class OwnConfig(GPTDatasetConfig):
    """A configuration of a user, with a setting that no cache key has."""

    colour: str = "red"


def test_settings_of_ours_count_and_those_of_a_user_that_decide_no_samples_do_not():
    config = make_config(None, kind=OwnConfig, blend=(["/data/books"], None), split="1,0,0", sequence_length=7)
    found = describe_settings(GPTDataset, [5, None, None], config)
    assert (found["sequence_length"], found["blend"], found["sizes"]) == ("7", '[ "books" ]', "[5, None, None]")
    assert not {"colour", "mmap_bin_files"} & set(found)
