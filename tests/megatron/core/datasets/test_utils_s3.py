"""`tokenloom.megatron.core.datasets.utils_s3`."""

from __future__ import annotations

from tokenloom.megatron.core.datasets import object_storage_utils, utils_s3


def test_names_are_those_of_the_newer_module():
    names = utils_s3.__all__
    assert [vars(utils_s3)[name] for name in names] == [vars(object_storage_utils)[name] for name in names]
