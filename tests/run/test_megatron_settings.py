"""The reference's order as a run, and what it cannot do."""

from __future__ import annotations

import pytest
from tests.run.texts import SMALL, error_of

from tokenloom.run.settings import parse_run

MEGATRON = SMALL.replace("order = 1", 'order = "megatron"').replace("weights", "samples = 100\nweights")


def test_the_order_of_the_reference():
    assert parse_run(MEGATRON, path="run.toml").order == "megatron"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('documents = "file"\n' + MEGATRON, "run.toml:1: expected no `documents` with"),
        ('windows = "concat"\n' + MEGATRON, "run.toml:1: expected no `windows` with"),
        ('mix = "even"\n' + MEGATRON, "run.toml:1: expected no `mix` with"),
        ("mixing_block = 1\n" + MEGATRON, "run.toml:1: expected no `mixing_block` with"),
        (MEGATRON + '[[denied]]\ndocuments = "x"\n', "run.toml:9: expected no `denied` with"),
        (MEGATRON.replace("seed = 1", f"seed = {2**32}"), "run.toml:2: expected `seed` in [0, 2**32) with"),
        (MEGATRON.replace('"web"', '{ data = "web", holdout = 0.1 }'), "run.toml:4: expected no `holdout` of source"),
        (MEGATRON.replace('"web"', '{ data = "web", max_passes = 2 }'), "run.toml:4: expected no `max_passes` of"),
        (MEGATRON + "[[stages]]\nsamples = 1\nweights = { web = 1 }", "run.toml:9: expected one stage with"),
        (MEGATRON + 'on_exhausted = "repeat"', "run.toml:9: expected no `on_exhausted`"),
        (MEGATRON.replace("samples = 100", ""), "run.toml:5: expected `tokens` or `samples` with"),
        (MEGATRON.replace("samples = 100\nweights", "passes"), "run.toml:7: expected no `passes`"),
    ],
)
def test_what_the_order_of_the_reference_cannot_do(text, words):
    error = error_of(text)
    assert error.message.startswith(words)
    assert "reference" in error.message or "seed" in words
