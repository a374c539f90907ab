"""Manifests: read whole, read at a glance, compared with the pair, and written again as they were."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from tests.indexed.manifest.manifests import make_manifest, write_recorded

from fuzz.inputs import Scratch
from tokenloom.errors import TokenloomError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.manifests import (
    manifest_bytes,
    manifest_path,
    parse_manifest,
    read_manifest,
    read_manifest_head,
)
from tokenloom.indexed.verify import verify_dataset

_SCRATCH = Scratch()
_PREFIX = write_recorded(_SCRATCH.path / "pair", [[[1, 2], [3]], [[4, 5]]])
_GOOD = (_SCRATCH.path / "pair.manifest.json").read_bytes()


def check(data: bytes) -> None:
    _SCRATCH.write("pair.manifest.json", data)
    head = None
    with suppress(TokenloomError):
        head = read_manifest_head(_PREFIX)
    with suppress(TokenloomError):
        manifest = read_manifest(_PREFIX)
        assert manifest is not None
        again = manifest_bytes(manifest)
        assert parse_manifest(again, path=manifest_path(_PREFIX)) == manifest, "written and read, it is another"
        if head is not None:
            assert head.tokenizer == manifest.tokenizer, "the head names another tokenizer"
            assert head.largest_token == manifest.pair.largest_token
    with suppress(TokenloomError):
        verify_dataset(_PREFIX)
    with suppress(TokenloomError):
        _ = IndexedDataset(_PREFIX).manifest_head


def seeds() -> Iterable[bytes]:
    yield _GOOD
    yield manifest_bytes(make_manifest())
    yield manifest_bytes(make_manifest(inputs=(), engine=None, options={"nested": [1, {"a": None}]}))
