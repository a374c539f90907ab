"""Text, a document per line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tokenloom.inputs import TEXT_KEY, InputSlice
from tokenloom.inputs.lines import LineBlock, LineReader
from tokenloom.inputs.parsing import ParsedBlock, Texts, check_text_keys
from tokenloom.inputs.record_format import ReadOptions, RecordFormat
from tokenloom.inputs.records import decoded
from tokenloom.inputs.utf8_texts import Utf8Texts
from tokenloom.kernels import line_texts


class TextLineBlock(LineBlock):
    """Lines that are texts."""

    __slots__ = ()

    def plain_texts(self, keys: Sequence[str]) -> ParsedBlock | None:
        """Returns the lines, by a kernel that makes no Python objects of them."""
        check_text_keys(self.path, keys)
        if self.too_long or (found := line_texts(self.data)) is None:
            return None
        content, offsets = found
        texts = Utf8Texts(content=content, offsets=offsets)
        return ParsedBlock(columns=(Texts(texts=texts),), num_documents=len(texts))

    def value_reader(self, loads: Callable[[bytes], Any] | None) -> Callable[[bytes], Any]:
        """Returns what makes a record of a line."""
        return lambda line: {TEXT_KEY: decoded(line)}


class TextLines(RecordFormat):
    """Text, a document per line."""

    title = "lines of text"
    suffixes: tuple[str, ...] = (".txt", ".text")
    may_begin_with_anything = True
    has_lines = True

    def check_keys(self, path: str, keys: Sequence[str]) -> None:
        """Refuses keys other than `text`; see `RecordFormat`."""
        check_text_keys(path, keys)

    def open(self, slice_: InputSlice, options: ReadOptions) -> LineReader:
        """Returns the reader of some lines; see `RecordFormat`."""
        return LineReader(slice_, options, block=TextLineBlock, drops_mark=True)


TEXT_LINES = TextLines()
