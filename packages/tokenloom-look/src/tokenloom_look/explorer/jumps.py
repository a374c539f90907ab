"""From what a person types to where it is: a position, a step, a document, a record."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from tokenloom.errors import ConfigError
from tokenloom.numbers import parse_integer, quoted
from tokenloom.run.settings import parse_name
from tokenloom_look.explorer.looking import Looking
from tokenloom_look.explorer.queries import NotThereError, Query

_KINDS = ("position", "step", "document", "record", "auto")
_STEP = re.compile(r"step[ :]*([0-9]+)", re.IGNORECASE)
_POSITION = re.compile(r"(?:position[ :]*)?([0-9][0-9,_ ]*)", re.IGNORECASE)


def jump(looking: Looking, query: Query) -> dict[str, Any]:
    """Returns the view and its parameters for a typed position, step, document or record."""
    what, value = query.text("what", "auto"), query.text("value").strip()
    query.check_read()
    if what not in _KINDS:
        raise ConfigError(f"`what`: must be one of {', '.join(_KINDS)}, got {quoted(what)}")
    if what == "auto":
        what, value = _meant(looking, value)
    if what == "position":
        return _to_position(looking, _number(value))
    if what == "step":
        return _to_step(looking, _number(value))
    return _to_document(looking, value, is_record=what == "record")


def _meant(looking: Looking, value: str) -> tuple[str, str]:
    """Returns kind and name of what a text names."""
    if found := _STEP.fullmatch(value):
        return "step", found[1]
    if found := _POSITION.fullmatch(value):
        return ("position" if looking.has_positions else "document"), re.sub("[,_ ]", "", found[1])
    return "document", value


def _number(value: str) -> int:
    return parse_integer(re.sub("[,_ ]", "", value), quoted(value), at_least=0)


def _to_position(looking: Looking, position: int) -> dict[str, Any]:
    if position >= (count := len(looking.samples())):
        raise NotThereError(f"position {position} out of range: there are {count}")
    return {"view": "samples", "parameters": {"position": position}}


def _to_step(looking: Looking, step: int) -> dict[str, Any]:
    if looking.topology is None:
        hint = "start `tokenloom explore` with --global-batch-size or --batch-size-schedule"
        raise ConfigError("no batch sizes given to find a step", hint=hint)
    return _to_position(looking, looking.topology.batch_sizes.position_of_step(step))


def _to_document(looking: Looking, value: str, *, is_record: bool) -> dict[str, Any]:
    """Returns the document of a number, a source and a number, or a file and a record."""
    if not is_record and (found := _POSITION.fullmatch(value)) and len(looking.target.sources) == 1:
        return _document(looking, 0, _number(found[1]))
    names = _source_names(looking)
    name, number = parse_name(value, () if is_record else names)
    if not is_record and name in names:
        return _document(looking, names[name], number)
    found_documents = looking.origins.documents_of(name, number)
    if not found_documents:
        raise NotThereError(f"`{name}:{number}` gave no document: it was blank, rejected, or left out")
    source, row = found_documents[0]
    return _document(looking, source, _own_number(looking, source, row)) | {"num_documents": len(found_documents)}


def _document(looking: Looking, source: int, document: int) -> dict[str, Any]:
    parameters = {"source": source, "document": looking.checked_document(source, document)}
    return {"view": "documents", "parameters": parameters}


def _source_names(looking: Looking) -> dict[str, int]:
    """Returns sources by name; those of pairs also by the last part of their prefix if it is unique."""
    names = {source.name: source.number for source in looking.target.sources}
    if looking.target.run is None:
        short = [PurePosixPath(name).name for name in names]
        names |= {name: number for number, name in enumerate(short) if short.count(name) == 1 and name not in names}
    return names


def _own_number(looking: Looking, source: int, row: int) -> int:
    """Returns the number of the document with a sequence."""
    if looking.target.run is not None:
        return row
    pairs, rows = looking.target.pair_rows.locate(np.array([source], np.int32), np.array([row], np.int64))
    return looking.target.pairs.get(looking.target.pair_rows.prefixes[int(pairs[0])]).document_of(int(rows[0]))
