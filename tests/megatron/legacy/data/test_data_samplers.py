"""`tokenloom.megatron.legacy.data.data_samplers`."""

from __future__ import annotations

from tokenloom.megatron.legacy.data import data_samplers
from tokenloom.megatron.training.datasets import data_samplers as newer


def test_names_are_those_of_the_newer_home():
    assert {*data_samplers.__all__} == {*newer.__all__}
    assert all(getattr(data_samplers, name) is getattr(newer, name) for name in newer.__all__)
