"""The packs that a lock says a pair makes."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from tests.datasets.conversations import ANSWER, PROMPT, conversation, write_conversations
from tests.run.data import settings_of, write_source
from tests.run.locks import make_lock

from tokenloom.errors import ConfigError, UntrainableWarning
from tokenloom.order.packs import best_fit_report
from tokenloom.run.lock import LockedSegment
from tokenloom.run.sources import lock_sources


def locked(settings, *, old=None):
    return lock_sources(settings, old=old, at=0)


def set_up(folder, *sources, lengths=(8,), **changes):
    settings = settings_of(folder, *sources)
    stages = [dataclasses.replace(settings.stages[0], name=f"s{length}", sequence_length=length) for length in lengths]
    return dataclasses.replace(settings, stages=tuple(stages), **changes)


def test_packs_of_all_stages_are_counted(tmp_path):
    write_source(tmp_path / "web", 3, 9, 4, 2, 0, 30)
    (source,) = locked(set_up(tmp_path, 'web = "web"', lengths=(16, 8), windows="best_fit"))
    lengths = np.array([3, 9, 4, 2, 0, 30], dtype=np.int32)
    assert source.pairs[0].packs == tuple(
        (length, best_fit_report(lengths, sequence_length=length).num_packs) for length in (8, 16)
    )
    without = {"add_extra_token_to_sequence": False}
    (source,) = locked(set_up(tmp_path, 'web = "web"', lengths=(8,), windows="best_fit", samples=without))
    expected = best_fit_report(lengths, sequence_length=8, extra=0).num_packs
    assert source.pairs[0].packs == ((8, expected),)
    (source,) = locked(set_up(tmp_path, 'web = "web"', windows="best_fit", samples={"most_documents": 1}))
    assert source.pairs[0].packs == ((8, 8),)  # 30 is four pieces


def test_what_an_older_lock_says_is_not_counted_again(tmp_path):
    write_source(tmp_path / "web", 3, 9, 4, 2)
    settings = set_up(tmp_path, 'web = "web"', windows="best_fit")
    (source,) = locked(settings)
    [pair] = source.pairs
    known = dataclasses.replace(source, pairs=(dataclasses.replace(pair, packs=((8, 77), (32, 5))),))
    segment = LockedSegment(stage="s8", start=0, num_samples=None, sequence_length=8, weights=((0, 1),))
    segments = (segment, dataclasses.replace(segment, sequence_length=64))
    old = make_lock(known, segments=segments)
    old = dataclasses.replace(old, seed=settings.seed, samples=settings.samples, windows="best_fit", dataset="gpt")
    (again,) = locked(set_up(tmp_path, 'web = "web"', lengths=(8, 16), windows="best_fit"), old=old)
    assert again.pairs[0].packs == ((8, 77), (16, 2), (32, 5), (64, 1))
    other = dataclasses.replace(old, windows="concat")
    (again,) = locked(settings, old=other)
    assert again.pairs[0].packs == (pair.packs[0], (64, 1))


@pytest.mark.parametrize(("dataset", "expected"), [("sft", 2), ("varlen", 3)])
def test_conversations_are_counted_as_their_class_takes_them(tmp_path, dataset, expected):
    talks = [
        conversation((PROMPT, [1, 2]), (ANSWER, [3, 4, 5])),
        conversation((PROMPT, [1, 2, 3])),
        conversation((PROMPT, [1]), (ANSWER, [3, 4])),
        conversation((PROMPT, [1]), (ANSWER, [3, 4] * 9)),
    ]
    write_conversations(tmp_path / "chat", talks)
    settings = set_up(tmp_path, 'chat = "chat"', dataset=dataset)
    with pytest.warns(UntrainableWarning, match="1 of 4 conversations have no token to train on"):
        (source,) = locked(settings)
    assert source.pairs[0].packs == ((8, expected),)
    if dataset == "sft":
        with pytest.warns(UntrainableWarning):
            (source,) = locked(set_up(tmp_path, 'chat = "chat"', dataset=dataset, samples={"most_conversations": 1}))
        assert source.pairs[0].packs == ((8, 3),)
    wrong = set_up(tmp_path, 'chat = "chat"', dataset=dataset, samples={"long_conversations": "error"})
    with pytest.raises(ConfigError, match="longer than a sample"):
        locked(wrong)
