"""What guides say in tables and settings is so."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tests.run.small_runs import lock, segment, source
from tokenloom.cli import build_parser
from tokenloom.megatron.installation import OURS
from tokenloom.run.settings import parse_run
from tokenloom.run.timeline import Timeline

GUIDES = Path(__file__).parents[1] / "docs" / "guides"
RUNS = GUIDES.parent / "runs.md"


def test_the_guide_from_megatron_names_every_module_and_nothing_else():
    text = (GUIDES / "from-megatron.md").read_text()
    (names,) = re.findall(r"^## Every name\n(.*?)^## ", text, re.DOTALL | re.MULTILINE)
    first_columns = "".join(re.findall(r"^\| (.*?) \|", names, re.MULTILINE))
    found = {word.rsplit(".", 1)[-1] for word in re.findall(r"`([a-z0-9_.]+)`", first_columns)}
    builder = "blended_megatron_dataset_builder"
    missing = {name.rsplit(".", 1)[-1] for name in OURS} - found - {builder.replace("builder", "config")}
    assert not missing, missing


def test_flags_that_stand_for_megatrons_are_options_of_ours():
    text = (GUIDES / "from-megatron.md").read_text()
    (flags,) = re.findall(r"^## Every flag\n(.*?)^## ", text, re.DOTALL | re.MULTILINE)
    last_columns = " ".join(re.findall(r"\| ([^|]*) \|$", flags, re.MULTILINE))
    named = set(re.findall(r"(?<!\S)`?(--[a-z-]+)", last_columns))
    (commands,) = [action for action in build_parser(["prepare-cache"])._actions if action.nargs == "A..."]
    known = set(commands.choices["prepare-cache"]._option_string_actions)
    assert len(named) > 30
    assert not named - known


def test_the_reference_of_run_toml_is_a_run():
    (text,) = re.findall(r"```toml\n(.*?)```", RUNS.read_text(), re.DOTALL)
    settings = parse_run(text, path="run.toml")
    assert [stage.name for stage in settings.stages] == ["main", "long"]
    assert len(settings.sources) == 3


def test_an_even_order_gives_each_rank_a_source_of_its_own_and_mixing_blocks_do_not():
    def shares_of_ranks(block: int) -> list[float]:
        run = lock([source("web", 50), source("code", 50)], [segment(0, 8192, [1, 1])], block=block)
        sources = Timeline(run).locate(np.arange(8192)).sources
        return [float(sources[rank::2].mean()) for rank in range(2)]

    assert sorted(shares_of_ranks(1)) == [0, 1]
    assert shares_of_ranks(1024) == pytest.approx([0.5, 0.5], abs=0.05)
