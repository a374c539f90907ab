"""The formats of input files. To add one: a module here with a `RecordFormat`, and its line in this table."""

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
"""Formats by the name that a user chooses: JSON lines; a document per line of text; a document per file of text;
Parquet; Arrow (a file or a stream); fields with commas or tabs between them. Where first bytes tell several formats,
the first one here counts."""
