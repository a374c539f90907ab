"""xz, by the standard library."""

from __future__ import annotations

import lzma

from tokenloom.inputs.codecs.codec import Decoder, MemberCodec

_LZMA_BYTES = 1 << 20  # that its decompressor needs beside the window


class Xz(MemberCodec):
    """xz."""

    name = "xz"
    suffixes: tuple[str, ...] = (".xz",)
    magic = b"\xfd7zXZ\x00"
    may_be_padded = True
    too_large = "Memory usage limit exceeded"
    how_to_have_less = "with `-9` at most"

    def decoder(self, window_bytes: int) -> Decoder:
        """Returns what opens members; see `MemberCodec`."""
        memory_bytes = window_bytes + _LZMA_BYTES
        return lambda: lzma.LZMADecompressor(memlimit=memory_bytes), (lzma.LZMAError,)


XZ = Xz()
