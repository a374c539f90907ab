"""Views of the overview: facts about the target, and sections of its report."""

from __future__ import annotations

from typing import Any

from tokenloom.numbers import quoted
from tokenloom_look.explorer.queries import NotThereError, Query
from tokenloom_look.explorer.session import Session
from tokenloom_look.report.section import ReportOptions, Section
from tokenloom_look.report.sections import make_section, sections_of
from tokenloom_look.target import TargetKind

_MOST_SOURCES = 1000
_KINDS = {
    TargetKind.pair: "a pair",
    TargetKind.catalogue: "a catalogue",
    TargetKind.blend: "a blend",
    TargetKind.run: "a run",
    TargetKind.job: "a job",
}


def target(session: Session, query: Query) -> dict[str, Any]:
    """Returns the kind, name, facts, sources, sections and available views of the target; reads no tokens."""
    query.check_read()
    shown = session.target
    return {
        "kind": shown.kind.value,
        "name": shown.name,
        "facts": _facts(session),
        "sources": [
            {
                "number": source.number,
                "name": source.name,
                "num_documents": source.num_documents,
                "num_tokens": source.num_tokens,
                "num_pairs": len(source.prefixes),
                "weight": source.weight,
            }
            for source in shown.sources[:_MOST_SOURCES]
        ],
        "num_sources": len(shown.sources),
        "num_positions": session.num_positions,
        "has_positions": session.has_positions,
        "has_steps": session.topology is not None and session.has_positions,
        "has_losses": session.losses is not None,
        "has_occurrences": shown.run is not None,
        "has_texts": shown.tokenizer is not None,
        "sections": [{"id": listed.id, "title": listed.title} for listed in sections_of(shown)],
        "views": _views(session),
        "notes": list(shown.notes),
    }


def section(session: Session, query: Query) -> dict[str, Any]:
    """Returns a section of the report as JSON values; caches the section, unless the target is a job."""
    name = query.text("id")
    query.check_read()
    listed = next((each for each in sections_of(session.target) if each.id == name), None)
    if listed is None:
        raise NotThereError(f"no section {quoted(name)}")
    sizes = None if session.topology is None else session.topology.batch_sizes.batch_size(0)
    with session.section_lock:
        found = None if session.target.kind is TargetKind.job else session.sections.get(name)
        if found is None:
            options = ReportOptions(global_batch_size=sizes, statistics=session.followed)
            result = make_section(listed, session.target, options).section
            empty = Section(id=listed.id, title=listed.title, html="")
            found = session.sections[name] = (result or empty).as_json()
    return found


def _views(session: Session) -> list[str]:
    has_documents = any(source.num_documents for source in session.target.sources)
    offered = {
        "overview": True,
        "samples": session.has_positions,
        "documents": has_documents,
        "search": has_documents,
        "watch": session.target.folder is not None or session.followed is not None,
    }
    return [name for name, is_offered in offered.items() if is_offered]


def _facts(session: Session) -> list[tuple[str, str]]:
    shown = session.target
    facts = [("kind", _KINDS[shown.kind])]
    if shown.sources:
        facts.append(("sources", f"{len(shown.sources):,}"))
        documents = "documents" if shown.run is None else "documents with tokens"
        facts.append((documents, f"{sum(source.num_documents for source in shown.sources):,}"))
        facts.append(("tokens", f"{sum(source.num_tokens for source in shown.sources):,}"))
    if shown.run is not None:
        facts.append(("positions", "without end" if shown.run.num_samples is None else f"{shown.run.num_samples:,}"))
        facts.append(("stages", f"{len(dict.fromkeys(each.stage for each in shown.run.lock.segments)):,}"))
        facts.append(("identity", shown.run.identity[:16]))
    return facts
