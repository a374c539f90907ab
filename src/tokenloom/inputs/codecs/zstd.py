"""Zstandard, by `zstandard`, a few blocks at a time, so that no call returns more than was asked for and a block.

What `zstandard` offers either returns all that some input comes to, 1 GiB for 32 KiB of it, or does not tell a whole
frame from a truncated one. So frames are walked along here, from header to header of their blocks, each of which comes
to 128 KiB at most: https://www.rfc-editor.org/rfc/rfc8878. Costs a microsecond per block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tokenloom.inputs.codecs.codec import Decoder, MemberCodec
from tokenloom.optional import require

_MAGIC = b"\x28\xb5\x2f\xfd"
_SKIPPABLE_MAGIC = b"\x2a\x4d\x18"  # behind a byte from 0x50 to 0x5f
_MOST_BLOCK_BYTES = 128 << 10
_RAW, _REPEATED = 0, 1


class ZstdFrame:
    """Decompresses one frame, with the methods of `bz2.BZ2Decompressor`.

    Args:
        frame: a `decompressobj` of `zstandard`; nothing but a frame is handed to it.
    """

    def __init__(self, frame: Any) -> None:
        self.eof: bool = False
        self.needs_input: bool = True
        self.unused_data: bytes = b""
        self._frame = frame
        self._data = b""  # not handed over yet
        self._left = 0  # bytes to the next header
        self._header: Callable[[bytes, int], tuple[int, int] | None] = self._frame_header
        self._checksum_bytes = 0

    def decompress(self, data: bytes, count: int) -> bytes:
        """Returns some `count` bytes of text, maybe none.

        Raises:
            zstandard.ZstdError: the data is damaged.
        """
        data = self._data + data
        stop = self._stop(data, count)
        text: bytes = self._frame.decompress(data[:stop]) if stop else b""
        self._data = data[stop:]
        self.eof = self._frame.eof
        if self.eof:
            self.unused_data = self._frame.unused_data + self._data
        self.needs_input = not stop or not self._data
        return text

    def _stop(self, data: bytes, count: int) -> int:
        """Returns how much of the data comes to `count` bytes, or to all that there is of whole headers."""
        at, num_bytes = self._left, 0
        while num_bytes < count and (found := self._header(data, at)) is not None:
            at += found[0]
            num_bytes += found[1]
        stop = min(at, len(data))
        self._left = at - stop
        return stop

    def _frame_header(self, data: bytes, at: int) -> tuple[int, int] | None:
        """Returns the length of the header, and of the text that comes with it; None if it is not there as a whole."""
        if len(data) < 8:  # no frame is shorter, with its first block
            return None
        if data[1:4] == _SKIPPABLE_MAGIC:
            self._header = _nothing
            return 8 + int.from_bytes(data[4:8], "little"), 0
        if not data.startswith(_MAGIC):
            self._header = _nothing
            return len(data), 0  # which the library refuses
        flags = data[4]
        is_single = flags >> 5 & 1
        self._checksum_bytes = flags & 4
        self._header = self._block_header
        return 5 + (1 - is_single) + (0, 1, 2, 4)[flags & 3] + (is_single, 2, 4, 8)[flags >> 6], 0

    def _block_header(self, data: bytes, at: int) -> tuple[int, int] | None:
        """Returns the length of a block with its header, and of its text at most."""
        if len(data) < at + 3:
            return None
        header = int.from_bytes(data[at : at + 3], "little")
        is_last, kind, size = header & 1, header >> 1 & 3, header >> 3
        length = 3 + (1 if kind == _REPEATED else size)
        if is_last:
            self._header = _nothing
            length += self._checksum_bytes
        return length, size if kind in (_RAW, _REPEATED) else _MOST_BLOCK_BYTES


def _nothing(_data: bytes, _at: int) -> None:
    """Says that the frame ends."""


class Zstd(MemberCodec):
    """Zstandard."""

    name = "zstd"
    suffixes: tuple[str, ...] = (".zst", ".zstd")
    magic = _MAGIC
    too_large = "Frame requires too much memory for decoding"
    how_to_have_less = "without `--long`, or with `--long=27`"

    def decoder(self, window_bytes: int) -> Decoder:
        """Returns what opens frames; see `MemberCodec`."""
        zstandard = require("zstandard", extra="preprocess")
        decompressor = zstandard.ZstdDecompressor(max_window_size=window_bytes)
        return lambda: ZstdFrame(decompressor.decompressobj()), (zstandard.ZstdError,)


ZSTD = Zstd()
