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
    """Returns the view, and its parameters, that show what was asked for."""
    what, value = query.text("what", "auto"), query.text("value").strip()
    query.check_read()
    if what not in _KINDS:
        message = f"expected one of {', '.join(_KINDS)} as `what`, found {quoted(what)}"
        raise ConfigError(message)
    if what == "auto":
        what, value = _meant(looking, value)
    if what == "position":
        return _to_position(looking, _number(value))
    if what == "step":
        return _to_step(looking, _number(value))
    return _to_document(looking, value, is_record=what == "record")


def _meant(looking: Looking, value: str) -> tuple[str, str]:
    """Returns what kind of thing a text names, and its name."""
    if found := _STEP.fullmatch(value):
        return "step", found[1]
    if found := _POSITION.fullmatch(value):
        return ("position" if looking.has_positions else "document"), re.sub("[,_ ]", "", found[1])
    return "document", value


def _number(value: str) -> int:
    return parse_integer(re.sub("[,_ ]", "", value), quoted(value), at_least=0)


def _to_position(looking: Looking, position: int) -> dict[str, Any]:
    if position >= (count := len(looking.samples())):
        message = f"expected a position in [0, {count}), found {position}"
        raise NotThereError(message)
    return {"view": "samples", "parameters": {"position": position}}


def _to_step(looking: Looking, step: int) -> dict[str, Any]:
    if looking.topology is None:
        message = "expected batch sizes to find a step, found none"
        raise ConfigError(message, hint="start `tokenloom explore` with --global-batch-size or --batch-size-schedule")
    return _to_position(looking, looking.topology.batch_sizes.position_of_step(step))


def _to_document(looking: Looking, value: str, *, is_record: bool) -> dict[str, Any]:
    """Returns where a document is that is named by a number, a source and a number, or a file and a record."""
    if not is_record and (found := _POSITION.fullmatch(value)) and len(looking.target.sources) == 1:
        return _document(looking, 0, _number(found[1]))
    names = _source_names(looking)
    name, number = parse_name(value, () if is_record else names)
    if not is_record and name in names:
        return _document(looking, names[name], number)
    found_documents = looking.origins.documents_of(name, number)
    if not found_documents:
        message = f"`{name}:{number}` gave no document: it was blank, rejected, or left out"
        raise NotThereError(message)
    source, row = found_documents[0]
    return _document(looking, source, _own_number(looking, source, row)) | {"num_documents": len(found_documents)}


def _document(looking: Looking, source: int, document: int) -> dict[str, Any]:
    named = looking.target.sources[source]
    if document >= named.num_documents:
        message = f"expected a document of {named.name} in [0, {named.num_documents}), found {document}"
        raise NotThereError(message)
    return {"view": "documents", "parameters": {"source": source, "document": document}}


def _source_names(looking: Looking) -> dict[str, int]:
    """Returns sources by name; those of pairs also by the last part of their prefix, where one alone has it."""
    names = {source.name: source.number for source in looking.target.sources}
    if looking.target.run is None:
        short = [PurePosixPath(name).name for name in names]
        names |= {name: number for number, name in enumerate(short) if short.count(name) == 1 and name not in names}
    return names


def _own_number(looking: Looking, source: int, row: int) -> int:
    """Returns the number of a document that is known by its sequence, which is the same in runs, and often in pairs."""
    if looking.target.run is not None:
        return row
    pairs, rows = looking.target.pair_rows.locate(np.array([source], np.int32), np.array([row], np.int64))
    return looking.target.pairs.get(looking.target.pair_rows.prefixes[int(pairs[0])]).document_of(int(rows[0]))
