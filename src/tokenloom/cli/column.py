"""`tokenloom column`: arrays beside a pair, a row for each token, sequence or document."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from tokenloom.cli.options import JsonOption, Written, refuse_usage
from tokenloom.cli.output import Answer, table
from tokenloom.errors import InputError
from tokenloom.indexed.columns import (
    ColumnFacts,
    ScatteredColumn,
    add_column,
    blocks_of,
    read_columns,
    remove_column,
)
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.optional import require
from tokenloom.storage.atomic import storage_errors
from tokenloom.storage.json_files import UnusableJsonError, members_of, parse_json


@dataclass(frozen=True, kw_only=True)
class ColumnOptions(JsonOption):
    """Values beside a dataset: add a file of them as a column, show the columns there are, or remove one.

    Samples have the columns that `columns` of their settings names, beside their tokens.

    Attributes:
        action: what to do.
        prefix: path of the pair without .bin or .idx.
        name: name of the column, to add or remove.
        values: a .npy file with a row for each token, sequence or document, in their order; or a .parquet or .jsonl
            file with a row for each document, in any order: its number under `document`, and under the name of the
            column its value or list of values, or with --kind token a list with a value or list for each token.
        kind: what its rows are aligned with.
        of: whether a value belongs to a token as it is read, or as it is predicted.
        padding: the value at positions without a token.
        dtype: dtype of the values (default: that of the .npy file, else float32).
        made_by: what made the values, for those who read it.
        overwrite: replace the column.
        json: print one JSON object: prefix, and in columns by name kind, dtype, shape, num_bytes, crc32, of, padding.
    """

    action: Annotated[Literal["add", "info", "remove"], Written(is_positional=True)]
    prefix: Annotated[str, Written(metavar="PREFIX", is_positional=True)]
    name: Annotated[str | None, Written(metavar="NAME", is_positional=True)] = None
    values: Annotated[str | None, Written(metavar="VALUES", is_positional=True)] = None
    kind: Literal["token", "sequence", "document"] = "token"
    of: Literal["token", "label"] = "token"
    padding: float = 0
    dtype: Annotated[str | None, Written(metavar="DTYPE")] = None
    made_by: Annotated[str | None, Written(metavar="TEXT")] = None
    overwrite: bool = False


def column(options: ColumnOptions) -> Answer:
    given = {"add": 2, "info": 0, "remove": 1}[options.action]
    if given != (options.name is not None) + (options.values is not None):
        words = ("a prefix", "a prefix and the name of a column", "a prefix, the name of a column and a file of values")
        refuse_usage(f"`{options.action}` takes {words[given]}")
    if options.name is not None and options.values is not None:
        _add(options, options.name, options.values)
    elif options.name is not None:
        remove_column(options.prefix, options.name)
    columns = read_columns(IndexedDataset(options.prefix))
    return Answer(
        {
            "prefix": options.prefix,
            "columns": {name: {**members_of(facts), "about": sorted(facts.about)} for name, facts in columns.items()},
        },
        table(("column", "per", "values", "bytes", "made by"), [_row(*each) for each in sorted(columns.items())])
        if columns
        else f"{options.prefix}: no columns",
    )


def _add(options: ColumnOptions, name: str, path: str) -> None:
    made_by = options.made_by or os.path.basename(path)
    facts: dict[str, Any] = {"of": options.of, "padding": options.padding, "made_by": made_by}
    facts["overwrite"] = options.overwrite
    if (records := _RECORDS.get(os.path.splitext(path)[1])) is None:
        values = _mapped(path)
        add_column(
            options.prefix, name, blocks_of(values), dtype=options.dtype or values.dtype, kind=options.kind, **facts
        )
        return
    pair, dtype = IndexedDataset(options.prefix), options.dtype or "float32"
    bounds = pair.document_indices
    rows = _rows_by_document(records(path, name), name, path, len(bounds) - 1)
    if options.kind == "token":
        _add_of_tokens(pair, name, rows, dtype, facts)
    elif options.kind == "document":
        found = dict(rows)
        if len(found) < len(bounds) - 1:
            missing = next(number for number in range(len(bounds)) if number not in found)
            message = f"`{path}`: there is no row of document {missing}"
            raise InputError(message, hint="a column has a row for each")
        values = np.stack([found[number] for number in range(len(found))]) if found else np.empty(0)
        add_column(options.prefix, name, values, dtype=dtype, kind="document", **facts)
    else:
        refuse_usage("a file with a row for each document makes columns per document or per token")


def _add_of_tokens(
    pair: IndexedDataset, name: str, rows: Iterator[tuple[int, NDArray[Any]]], dtype: str, facts: Mapping[str, Any]
) -> None:
    column = None
    try:
        for document, values in rows:
            sequences = range(*pair.document_indices[document : document + 2].tolist())
            lengths = [int(pair.sequence_lengths[each]) for each in sequences]
            if values.ndim == 0 or len(values) != sum(lengths):
                message = f"document {document} has {sum(lengths)} tokens, found {values.size} values of `{name}`"
                raise InputError(message, hint="a column per token has a list with a value for each")
            if column is None and len(values):
                width = None if values.ndim == 1 else values.shape[1]
                column = ScatteredColumn(pair.path_prefix, name, dtype=dtype, width=width, resumes=False)
            for sequence, end, length in zip(sequences, np.cumsum(lengths), lengths, strict=True):
                if column is not None and length:
                    column.write(sequence, values[end - length : end])
        if column is None:
            add_column(pair.path_prefix, name, np.empty(0), dtype=dtype, **facts)
        else:
            column.finish(**facts)
    finally:
        if column is not None:
            column.close()
            column.discard()


def _rows_by_document(
    records: Iterator[Mapping[str, Any]], name: str, path: str, count: int
) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yields documents with their values; each once."""
    seen = np.zeros(count, dtype=np.bool_)
    for row, record in enumerate(records):
        document = record.get("document") if isinstance(record, Mapping) else None
        if type(document) is not int or not 0 <= document < count or seen[document] or name not in record:
            message = (
                f"`{path}`, row {row}: expected `{name}` and another `document` below {count}, found {record!r:.200}"
            )
            raise InputError(message)
        seen[document] = True
        values = np.array(record[name])
        if values.dtype.kind not in "biuf":
            message = f"`{path}`, row {row}: expected numbers as `{name}`, found {record[name]!r:.200}"
            raise InputError(message)
        yield document, values


def _json_lines(path: str, _: str) -> Iterator[Any]:
    with storage_errors("read", path), open(path, "rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                yield parse_json(line)
            except UnusableJsonError as error:
                message = f"`{path}`, line {number}: {str(error).removeprefix(': ')}"
                raise InputError(message) from error


def _parquet(path: str, name: str) -> Iterator[Any]:
    parquet, arrow = require("pyarrow.parquet", extra="parquet"), require("pyarrow", extra="parquet")
    with storage_errors("read", path):
        try:
            for batch in parquet.ParquetFile(path).iter_batches(1024, columns=["document", name]):
                yield from batch.to_pylist()
        except arrow.ArrowException as error:
            message = f"cannot read `{path}` as Parquet: {error}"
            raise InputError(message) from error


_RECORDS: Mapping[str, Callable[[str, str], Iterator[Any]]] = {".jsonl": _json_lines, ".parquet": _parquet}


def _mapped(path: str) -> NDArray[Any]:
    try:
        values: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        message = f"cannot read `{path}` as a NumPy file: {error}"
        raise InputError(message, hint="`numpy.save` writes one") from error
    return values


def _row(name: str, facts: ColumnFacts) -> tuple[str, str, str, int, str]:
    per = f"{facts.kind}, of labels" if facts.of == "label" else facts.kind
    width = f"[{facts.shape[1]}]" if facts.shape[1:] else ""
    return name, per, f"{facts.shape[0]:,} x {facts.dtype}{width}", facts.num_bytes, facts.made_by or ""
