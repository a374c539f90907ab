"""The compressions of input files. To add one: a module here with a `Codec`, and its line in this table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenloom.registry import Registry

if TYPE_CHECKING:
    from tokenloom.inputs.codecs.codec import Codec

CODECS: Registry[Codec] = Registry(
    "compression",
    {
        "gzip": "tokenloom.inputs.codecs.gzip:GZIP",
        "zstd": "tokenloom.inputs.codecs.zstd:ZSTD",
        "bz2": "tokenloom.inputs.codecs.bz2:BZ2",
        "xz": "tokenloom.inputs.codecs.xz:XZ",
    },
)
"""Compressions by the name that messages and manifests have for them."""
