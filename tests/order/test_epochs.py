"""Numbers of epochs and windows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.reference.gpt import count_epochs

from tokenloom.errors import ConfigError
from tokenloom.order.epochs import EpochPlan, WindowEpochs


def plan(tokens, samples, *, length=4, extra=1, keep_partial=False):
    epochs = WindowEpochs(num_tokens=tokens, sequence_length=length, extra=extra, keep_partial=keep_partial)
    return epochs.plan(samples)


def test_an_empty_corpus_has_no_samples_to_ask_for():
    assert plan(0, None).num_samples == 0
    with pytest.raises(
        ConfigError, match=r"^the documents of the split have no tokens, but 7 samples are requested\nhint: raise"
    ):
        plan(0, 7)


@given(
    tokens=st.integers(1, 60),
    samples=st.none() | st.integers(0, 40),
    length=st.integers(1, 12),
    extra=st.integers(0, 1),
    keep_partial=st.booleans(),
)
def test_the_plan_is_that_of_the_slow_twin(tokens, samples, length, extra, keep_partial):
    found = plan(tokens, samples, length=length, extra=extra, keep_partial=keep_partial)
    expected = count_epochs(tokens, samples, sequence_length=length, extra=extra, keep_partial=keep_partial)
    assert found == EpochPlan(
        tokens_per_epoch=tokens,
        num_epochs=expected.num_epochs,
        num_samples=expected.num_samples,
        num_samples_sans_final_epoch=expected.num_samples_sans_final_epoch,
        separate_final_epoch=expected.separate_final_epoch,
    )
    assert found.num_samples >= (samples or 0)


@given(
    tokens=st.integers(1, 2**62),
    samples=st.integers(1, 2**62),
    length=st.integers(1, 2**31),
    extra=st.integers(0, 1),
)
def test_the_fewest_epochs_that_suffice_are_taken_whatever_the_size(tokens, samples, length, extra):
    found = plan(tokens, samples, length=length, extra=extra)
    wanted = samples * length + extra
    assert found.num_epochs * tokens >= wanted
    assert found.num_epochs == 1 or (found.num_epochs - 1) * tokens < wanted
    assert found.num_samples == (found.num_epochs * tokens - extra) // length


def test_large_counts_are_exact():
    tokens = 2**40 + 1
    found = plan(tokens, 2**38, length=2**12)
    # 2**38 windows of 2**12 tokens are 2**50 tokens and one more, of 2**40 + 1 each.
    assert found.num_epochs == 2**10  # 2**10 * (2**40 + 1) = 2**50 + 2**10
    assert found.num_samples == 2**38
    assert plan(tokens, 2**38 + 1, length=2**12).num_epochs == 2**10 + 1
    assert plan(tokens, 2**38 + 1, length=2**12).num_samples_sans_final_epoch == 2**38
    # A float64 has 53 bits: these counts differ in the 60th.
    assert plan(2**60 + 1, None, length=1).num_samples == 2**60
    assert plan(2**60 + 2, None, length=1, keep_partial=True).num_samples == 2**60 + 1
