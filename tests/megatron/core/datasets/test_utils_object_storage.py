"""`tokenloom.megatron.core.datasets.utils_object_storage`."""

from __future__ import annotations

from tokenloom.megatron.core.datasets import object_storage_utils, utils_object_storage


def test_names_are_those_of_the_newer_module():
    names = utils_object_storage.__all__
    assert [vars(utils_object_storage)[name] for name in names] == [vars(object_storage_utils)[name] for name in names]
