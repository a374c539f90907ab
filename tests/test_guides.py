"""The guides run as they are written: their commands in one shell, their Python beside them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.run.small_runs import lock, segment, source
from tokenloom.cli import build_parser
from tokenloom.megatron.module_names import OURS
from tokenloom.run.settings import parse_run
from tokenloom.run.timeline import Timeline

GUIDES = Path(__file__).parents[1] / "docs" / "guides"
RUNS = GUIDES.parent / "runs.md"


def run_guide(path: Path, folder: Path) -> str:
    """Runs all blocks of a guide, in their order, in a folder; returns what they printed."""
    programs = folder.parent / f"{folder.name}-bin"
    programs.mkdir()
    for name, words in (("tokenloom", "-m tokenloom.cli"), ("python3", "")):
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
        program.chmod(0o755)
    lines = ["set -euo pipefail"]
    for language, block in re.findall(r"```(sh|python)\n(.*?)```", path.read_text(), re.DOTALL):
        lines.append(block if language == "sh" else f"python3 - <<'PYTHON'\n{block}PYTHON")
    done = subprocess.run(
        ["bash", "-c", "\n".join(lines)],
        cwd=folder,
        env={**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_loaders_are_killed_and_resumed_as_the_guide_says(tmp_path):
    path = GUIDES / "verify-resume.md"
    folder = tmp_path / "guide"
    folder.mkdir()
    printed = run_guide(path, folder)
    (shown,) = re.findall(r"```text\n(.*?)```", path.read_text(), re.DOTALL)
    assert shown in printed
    assert re.findall(r", (\d+) failed; ", printed) == ["0", "4", "0"]
    assert printed.endswith("True\n")


def test_a_run_is_changed_in_ten_commands_and_nothing_that_was_read_moves(tmp_path):
    pytest.importorskip("torch")
    path = GUIDES / "changing-a-run.md"
    assert re.findall(r"^\*\*(\d+)\.\*\*", path.read_text(), re.MULTILINE) == [str(number) for number in range(1, 11)]
    folder = tmp_path / "run"
    folder.mkdir()
    printed = run_guide(path, folder)
    digests = re.findall(r"^([0-9a-f]{64})  run\.toml before position 800$", printed, re.MULTILINE)
    assert len(digests) == 2
    assert digests[0] == digests[1]
    firsts = [int(found.replace(",", "")) for found in re.findall(r"first position that moved: ([\d,]+)", printed)]
    assert len(firsts) == 4
    assert all(first >= start for first, start in zip(firsts, (800, 1600, 2000, 2400), strict=True))
    assert "found position 0 moved: a sample of seed 1234 would become one of seed 4321" in printed
    assert "4 pairs of 3 sources, every byte: ok" in printed
    assert re.search(
        r"^position 799 of the run\nsource \w+, pass \d+, window [\d,]+, stage main, ", printed, re.MULTILINE
    )


def test_what_a_run_saw_is_asked_in_eight_commands(tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("pyarrow")
    path = GUIDES / "what-did-the-model-see.md"
    assert re.findall(r"^\*\*(\d+)\.\*\*", path.read_text(), re.MULTILINE) == [str(number) for number in range(1, 9)]
    folder = tmp_path / "run"
    folder.mkdir()
    printed = run_guide(path, folder)
    assert re.search(
        r"^position 1,202, step 150, rank 1, micro-batch 0, stage main, source \w+, pass 0$", printed, re.M
    )
    denied = printed[printed.index("tokens in") :]
    assert re.search(r"become padding\n.*?before that, \d+ tokens in \d+ positions? of \d+ steps? were", denied, re.S)
    assert "nothing else moves" in denied
    assert "balance 0" in denied
    assert "as expected: 800 samples" in denied
    assert "position 0 is\n  A: stage main" in denied
    assert len(re.findall("^is (?:READ|NOT READ) at positions? ", denied, re.M)) == 2


def test_a_job_of_megatrons_runs_on_our_data_classes_without_a_change(tmp_path):
    pytest.importorskip("megatron.core")
    path = GUIDES / "from-megatron.md"
    folder = tmp_path / "job"
    folder.mkdir()
    printed = run_guide(path, folder)
    (shown,) = re.findall(r"```text\n(.*?)```", path.read_text(), re.DOTALL)
    assert printed.count(shown) == 2, printed
    assert "megatron.core.datasets.gpt_dataset is tokenloom.megatron.core.datasets.gpt_dataset" in printed


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


def test_data_are_seen_as_the_guide_says(tmp_path):
    pytest.importorskip("matplotlib")
    path = GUIDES / "seeing-your-data.md"
    folder = tmp_path / "seen"
    folder.mkdir()
    printed = run_guide(path, folder)
    assert re.search(r"^report\.html: \d+ sections, ", printed, re.MULTILINE)
    page = (folder / "report.html").read_text()
    assert "the run has 10,000 samples" in page
    titles = {re.sub("<.*?>", "", title).lower() for title in re.findall(r"<h2\b.*?>(.*?)</h2>", page)}
    named = re.findall(r"^\| ([a-z ,]+) \| .*\? \|$", path.read_text(), re.MULTILINE)
    assert len(named) == 8
    assert {name for row in named for name in row.split(", ")} <= titles
    assert re.search(r"^── document [\d,]+ of web, tokens [\d,]+ to [\d,]+ of [\d,]+ ─+$", printed, re.MULTILINE)
    for name, begin in (("mixture.png", b"\x89PNG"), ("plan.svg", b"<?xml"), ("lengths.png", b"\x89PNG")):
        assert (folder / name).read_bytes().startswith(begin)
    pictures = re.findall(r"!\[.+\]\((\S+)\)", path.read_text())
    assert [(GUIDES / name).read_bytes()[:4] for name in pictures] == [b"\x89PNG"] * 2


def test_every_guide_is_tested():
    tested = ["changing-a-run.md", "from-megatron.md", "seeing-your-data.md", "verify-resume.md"]
    assert sorted(path.name for path in GUIDES.glob("*.md")) == [*tested, "what-did-the-model-see.md"]


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
