"""Configurations show all their settings."""

from __future__ import annotations

import pydoc
import re
from dataclasses import dataclass, fields

import pytest
from tests.support import StandInTokenizer, make_config

from tokenloom import (
    BERTMaskedWordPieceDatasetConfig,
    BlendedMegatronDatasetConfig,
    GPTDatasetConfig,
    GPTFIMDatasetConfig,
    SFTDatasetConfig,
    T5MaskedWordPieceDatasetConfig,
    VarlenDatasetConfig,
)
from tokenloom.datasets.inherited_settings import ShowsSettings, with_inherited

CONFIGS = (
    BERTMaskedWordPieceDatasetConfig,
    BlendedMegatronDatasetConfig,
    GPTDatasetConfig,
    GPTFIMDatasetConfig,
    SFTDatasetConfig,
    T5MaskedWordPieceDatasetConfig,
    VarlenDatasetConfig,
)


@dataclass
class First(ShowsSettings):
    """The first.

    Attributes:
        one, two: of the first,
            on two lines.
        three: likewise.

    More.
    """

    one: int = 1
    two: int = 2
    three: int = 3


@dataclass
class Second(First):
    """The second.

    Attributes:
        four: of the second.
        two: changed.
    """

    four: int = 4


@dataclass
class Third(Second):
    """The third, with nothing of its own."""


def test_settings_stand_behind_those_of_the_class():
    assert Second.__doc__ == (
        "The second.\n\nAttributes:\n    four: of the second.\n    two: changed.\n"
        "    one: of the first,\n        on two lines.\n    three: likewise."
    )
    assert Third.__doc__ == Second.__doc__.replace("The second.", "The third, with nothing of its own.")
    assert First.__doc__.endswith("    three: likewise.\n\nMore.")
    assert with_inherited(Second) == Second.__doc__


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.__name__)
def test_help_describes_every_setting_once(config):
    page = pydoc.plain(pydoc.render_doc(config))
    listed = page.partition("Attributes:")[2].partition("Method resolution order")[0]
    described = re.findall(r"^ \|      (\w+(?:, \w+)*): ", listed, re.MULTILINE)
    names = sorted(name for entry in described for name in entry.split(", "))
    assert names == sorted(each.name for each in fields(config) if each.name != "_")


def test_a_configuration_shows_what_was_chosen():
    assert repr(First(two=5)) == "First(two=5)"
    assert repr(Third(four=0)) == "Third(four=0)"
    tokenizer = StandInTokenizer()
    config = make_config("corpus", tokenizer=tokenizer, sequence_length=8, eod_mask_loss=True)
    assert repr(config) == (
        "GPTDatasetConfig(random_seed=57, sequence_length=8, blend=(['corpus'], None), split='1,0,0', "
        f"tokenizer={tokenizer!r}, eod_mask_loss=True)"
    )
