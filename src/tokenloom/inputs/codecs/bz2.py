"""bzip2, by the standard library; its blocks have 900 kB at most."""

from __future__ import annotations

import bz2

from tokenloom.inputs.codecs.codec import Decoder, MemberCodec


class Bz2(MemberCodec):
    """bzip2."""

    name = "bz2"
    suffixes: tuple[str, ...] = (".bz2",)
    magic = b"BZh"

    def decoder(self, window_bytes: int) -> Decoder:
        """Returns what opens members; see `MemberCodec`."""
        return bz2.BZ2Decompressor, (OSError, ValueError)


BZ2 = Bz2()
