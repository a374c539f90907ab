"""The view `jump`: finds the position, step, document or record that the user typed."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from tokenloom.errors import ConfigError
from tokenloom.numbers import parse_integer, quoted
from tokenloom.run.settings import parse_name
from tokenloom_look.explorer.queries import NotThereError, Query
from tokenloom_look.explorer.session import Session

_KINDS = ("position", "step", "document", "record", "auto")
_STEP = re.compile(r"step[ :]*([0-9]+)", re.IGNORECASE)
_POSITION = re.compile(r"(?:position[ :]*)?([0-9][0-9,_ ]*)", re.IGNORECASE)


def jump(session: Session, query: Query) -> dict[str, Any]:
    """Returns the view that shows a typed position, step, document or record, and the parameters of that view."""
    what, value = query.text("what", "auto"), query.text("value").strip()
    query.check_read()
    if what not in _KINDS:
        raise ConfigError(f"`what`: must be one of {', '.join(_KINDS)}, got {quoted(what)}")
    if what == "auto":
        what, value = _meant(session, value)
    if what == "position":
        return _to_position(session, _number(value))
    if what == "step":
        return _to_step(session, _number(value))
    return _to_document(session, value, is_record=what == "record")


def _meant(session: Session, value: str) -> tuple[str, str]:
    """Parses a typed text: returns its kind ("step", "position" or "document") and its number or name."""
    if found := _STEP.fullmatch(value):
        return "step", found[1]
    if found := _POSITION.fullmatch(value):
        return ("position" if session.has_positions else "document"), re.sub("[,_ ]", "", found[1])
    return "document", value


def _number(value: str) -> int:
    return parse_integer(re.sub("[,_ ]", "", value), quoted(value), at_least=0)


def _to_position(session: Session, position: int) -> dict[str, Any]:
    if position >= (count := len(session.samples())):
        raise NotThereError(f"position {position} out of range: the target has {count} positions")
    return {"view": "samples", "parameters": {"position": position}}


def _to_step(session: Session, step: int) -> dict[str, Any]:
    if session.topology is None:
        hint = "start `tokenloom explore` with --global-batch-size or --batch-size-schedule"
        raise ConfigError("the position of a step is unknown without batch sizes", hint=hint)
    return _to_position(session, session.topology.batch_sizes.position_of_step(step))


def _to_document(session: Session, value: str, *, is_record: bool) -> dict[str, Any]:
    """Finds a document by its index, by source and index, or by file and record."""
    if not is_record and (found := _POSITION.fullmatch(value)) and len(session.target.sources) == 1:
        return _document(session, 0, _number(found[1]))
    names = _source_names(session)
    name, number = parse_name(value, () if is_record else names)
    if not is_record and name in names:
        return _document(session, names[name], number)
    found_documents = session.origins.documents_of(name, number)
    if not found_documents:
        raise NotThereError(f"`{name}:{number}` has no document: the record was blank, rejected or skipped")
    source, row = found_documents[0]
    return _document(session, source, _own_number(session, source, row)) | {"num_documents": len(found_documents)}


def _document(session: Session, source: int, document: int) -> dict[str, Any]:
    parameters = {"source": source, "document": session.checked_document(source, document)}
    return {"view": "documents", "parameters": parameters}


def _source_names(session: Session) -> dict[str, int]:
    """Returns source indices by source name, and by the file name of a prefix if no other prefix has that file name."""
    names = {source.name: source.number for source in session.target.sources}
    if session.target.run is None:
        short = [PurePosixPath(name).name for name in names]
        names |= {name: number for number, name in enumerate(short) if short.count(name) == 1 and name not in names}
    return names


def _own_number(session: Session, source: int, row: int) -> int:
    """Returns the index of the document that contains sequence `row`; both are counted over the source."""
    if session.target.run is not None:
        return row
    pairs, rows = session.target.pair_rows.locate(np.array([source], np.int32), np.array([row], np.int64))
    return session.target.pairs.get(session.target.pair_rows.prefixes[int(pairs[0])]).document_of(int(rows[0]))
