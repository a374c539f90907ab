"""Blends as users write them: a list, a file of entries, a JSON file per split."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress

from tests.indexed.pairs import write_two_pairs

from fuzz.inputs import Bytes, Scratch
from tokenloom.blending.spec import BlendSettings, get_blend_from_list, parse_blend
from tokenloom.errors import TokenloomError

_SCRATCH = Scratch()
write_two_pairs(_SCRATCH.path / "data")


def check(data: bytes) -> None:
    """Data: how it is given, the text."""
    source = Bytes(data)
    kind = source.integer(0, 255) % 3
    # Entries stay below the folder of the target: other files are none of a fuzzer's business.
    content = source.rest().replace(b"..", b"__").replace(b"\\u", b"__").replace(b"://", b"___").replace(b"**", b"*_")
    content = content.replace(b"/", b"_").replace(b"data_", b"data/")
    here = os.getcwd()
    os.chdir(_SCRATCH.path)
    try:
        with suppress(TokenloomError):
            if kind == 0:
                blend = get_blend_from_list(entries := content.decode(errors="replace").split(","))
                assert blend is not None
                assert len(blend[0]) == len(entries) // (1 if blend[1] is None else 2)
                _check(parse_blend(entries))
            else:
                path = _SCRATCH.write("blend.txt", content)
                _check(parse_blend(args_file=path) if kind == 1 else parse_blend(per_split=path))
    finally:
        os.chdir(here)


def _check(settings: BlendSettings) -> None:
    for blend in settings.get("blend_per_split") or [settings.get("blend")]:
        if blend is not None and blend[1] is not None:
            assert len(blend[1]) == len(blend[0])
            assert all(0 < weight < float("inf") for weight in blend[1]), "a weight that is none"


def seeds() -> Iterable[bytes]:
    yield b"\0" + b"30,data/a,70,data/b"
    yield b"\0" + b"data/a.bin, data/b"
    yield b"\1" + b"0.3 data/a\n7e-1\tdata/b.idx\n"
    yield b"\1" + b"2 data/*"
    yield b"\2" + b'{"train": [30, "data/a", 70, "data/b"], "valid": ["data/b"], "test": null}'
