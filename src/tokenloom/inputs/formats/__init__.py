"""The registry of input formats. To add a format, write a module with a `RecordFormat` here and add it to `FORMATS`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenloom.registry import Registry

if TYPE_CHECKING:
    from tokenloom.inputs.record_format import RecordFormat

FORMATS: Registry[RecordFormat] = Registry(
    "input format",
    {
        "jsonl": "tokenloom.inputs.formats.jsonl:JSONL",
        "text-lines": "tokenloom.inputs.formats.text:TEXT_LINES",
        "text-files": "tokenloom.inputs.formats.text:TEXT_FILES",
        "parquet": "tokenloom.inputs.formats.parquet:PARQUET",
        "arrow": "tokenloom.inputs.formats.arrow:ARROW",
        "csv": "tokenloom.inputs.formats.delimited:CSV",
        "tsv": "tokenloom.inputs.formats.delimited:TSV",
    },
)
"""Formats by the value of `input_format`: JSON lines, a document per line of text, a document per text file, Parquet,
Arrow (file or stream), CSV and TSV. If the first bytes of a file match several formats, the first one wins."""
