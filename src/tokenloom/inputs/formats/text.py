"""Reads plain text: a document per line, or a document per file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from tokenloom._native import line_texts
from tokenloom.errors import ConfigError
from tokenloom.inputs import TEXT_KEY, InputSlice
from tokenloom.inputs.lines import LineBlock, LineFormat
from tokenloom.inputs.record_format import ReadOptions, RecordFormat, StreamReader
from tokenloom.inputs.records import (
    HEAD_BYTES,
    Block,
    NumberedRecord,
    ParsedBlock,
    Texts,
    UnusableLineError,
    decoded,
    without_mark,
)
from tokenloom.inputs.utf8_texts import Utf8Texts


class TextLineBlock(LineBlock):
    """A block of lines; each line is a text."""

    __slots__ = ()

    def plain_texts(self, keys: Sequence[str]) -> ParsedBlock | None:
        if (found := line_texts(self.data)) is None:
            return None
        texts = Utf8Texts(content=found[0], offsets=found[1])
        return ParsedBlock(columns=(Texts(texts=texts),), num_documents=len(texts))

    def value_reader(self) -> Callable[[bytes], Any]:
        return lambda line: {TEXT_KEY: decoded(line)}


class _Text(RecordFormat):
    suffixes: tuple[str, ...] = (".txt", ".text")

    def check_keys(self, path: str, keys: Sequence[str]) -> None:
        """Raises `ConfigError` for keys other than `text`."""
        if tuple(keys) != (TEXT_KEY,):
            raise ConfigError(f"`{path}` is plain text: its only key is {TEXT_KEY!r}, got {list(keys)!r}")


class TextLines(_Text, LineFormat):
    """Plain text with a document per line."""

    title = "lines of text"
    block: type[LineBlock] = TextLineBlock


TEXT_LINES = TextLines()


@dataclass(frozen=True, slots=True, kw_only=True)
class FileBlock(Block):
    """The decompressed content of a text file, as one record."""

    unit: ClassVar[str] = "file"

    def records(self) -> Iterator[NumberedRecord]:
        value: Any = None
        if self.data.strip():
            try:
                value = {TEXT_KEY: decoded(without_mark(self.data))}
            except UnusableLineError as error:
                value = error
        yield NumberedRecord(self.first_record, value, self.data, is_blank=value is None)


class FileReader(StreamReader):
    """A reader of a text file, which is one block with one record. Memory: the file, up to `max_record_bytes`."""

    def read_blocks(self) -> Iterator[FileBlock]:
        parts: list[bytes] = []
        while chunk := self._stream.read(1 << 20):
            self.num_text_bytes += len(chunk)
            if self.num_text_bytes <= self._limits.max_record_bytes:
                parts.append(chunk)
            else:
                parts = [b"".join([*parts, chunk])[:HEAD_BYTES]]
        self.num_rows += 1
        too_long = self.num_text_bytes > self._limits.max_record_bytes
        data = b"".join(parts)
        yield FileBlock(path=self._path, data=data, max_record_bytes=self._limits.max_record_bytes, too_long=too_long)


class TextFiles(_Text):
    """Plain text with a document per file."""

    title = "text"
    takes_any_name = True
    unit = "file"

    def open(self, slice_: InputSlice, options: ReadOptions) -> FileReader:
        return FileReader(slice_, options)


TEXT_FILES = TextFiles()
