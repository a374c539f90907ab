"""`tokenloom column`: arrays beside a pair, a row for each token, sequence or document."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from tokenloom.cli.options import JsonOption, UsageError, Written
from tokenloom.cli.output import Answer, table
from tokenloom.errors import InputError
from tokenloom.indexed.columns import ColumnFacts, add_column, read_columns, remove_column
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.storage.json_files import members_of

_BLOCK_BYTES = 16 << 20


@dataclass(frozen=True, kw_only=True)
class ColumnOptions(JsonOption):
    """Values beside a dataset: add a NumPy file as a column, show the columns there are, or remove one.

    Samples have the columns that `columns` of their settings names, beside their tokens.

    Attributes:
        action: what to do.
        prefix: path of the pair without .bin or .idx.
        name: name of the column, to add or remove.
        values: a .npy file with a row for each token, sequence or document, in their order.
        kind: what its rows are aligned with.
        of: whether a value belongs to a token as it is read, or as it is predicted.
        padding: the value at positions without a token.
        made_by: what made the values, for those who read it.
        overwrite: replace the column.
        json: print one JSON object: prefix, and in columns by name kind, dtype, shape, num_bytes, crc32, of, padding.
    """

    action: Annotated[Literal["add", "info", "remove"], Written(is_positional=True)]
    prefix: Annotated[str, Written(metavar="PREFIX", is_positional=True)]
    name: Annotated[str | None, Written(metavar="NAME", is_positional=True)] = None
    values: Annotated[str | None, Written(metavar="VALUES.npy", is_positional=True)] = None
    kind: Literal["token", "sequence", "document"] = "token"
    of: Literal["token", "label"] = "token"
    padding: float = 0
    made_by: Annotated[str | None, Written(metavar="TEXT")] = None
    overwrite: bool = False


def run(options: ColumnOptions) -> Answer:
    """Does it; returns the columns that lie beside the pair then."""
    given = {"add": 2, "info": 0, "remove": 1}[options.action]
    if given != (options.name is not None) + (options.values is not None):
        words = ("a prefix", "a prefix and the name of a column", "a prefix, the name of a column and a .npy file")
        message = f"`{options.action}` takes {words[given]}"
        raise UsageError(message)
    if options.name is not None and options.values is not None:
        values = _mapped(options.values)
        add_column(
            options.prefix,
            options.name,
            _blocks(values),
            dtype=values.dtype,
            kind=options.kind,
            of=options.of,
            padding=options.padding,
            made_by=options.made_by or os.path.basename(options.values),
            overwrite=options.overwrite,
        )
    elif options.name is not None:
        remove_column(options.prefix, options.name)
    columns = read_columns(IndexedDataset(options.prefix))
    return Answer(
        {
            "prefix": options.prefix,
            "columns": {name: members_of(facts) | {"about": sorted(facts.about)} for name, facts in columns.items()},
        },
        table(("column", "per", "values", "bytes", "made by"), [_row(*each) for each in sorted(columns.items())])
        if columns
        else f"{options.prefix}: no columns",
    )


def _mapped(path: str) -> NDArray[Any]:
    try:
        values: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        message = f"cannot read `{path}` as a NumPy file: {error}"
        raise InputError(message, hint="`numpy.save` writes one") from error
    return values


def _blocks(values: NDArray[Any]) -> Iterator[NDArray[Any]]:
    rows = max(1, _BLOCK_BYTES // max(1, values[:1].nbytes))
    yield values[:0]
    for begin in range(0, len(values), rows):
        yield values[begin : begin + rows]


def _row(name: str, facts: ColumnFacts) -> tuple[str, str, str, str, str]:
    per = f"{facts.kind}, of labels" if facts.of == "label" else facts.kind
    width = f"[{facts.shape[1]}]" if facts.shape[1:] else ""
    return name, per, f"{facts.shape[0]:,} x {facts.dtype}{width}", f"{facts.num_bytes:,}", facts.made_by or ""
