"""Facts about the object that is shown, and the sections of its report, one by one."""

from __future__ import annotations

from typing import Any

from tokenloom.numbers import quoted
from tokenloom_look.explorer.looking import Looking
from tokenloom_look.explorer.queries import NotThereError, Query
from tokenloom_look.report.section import ReportOptions, Section
from tokenloom_look.report.sections import made, sections_of
from tokenloom_look.target import TargetKind

_MOST_SOURCES = 1000
_KINDS = {
    TargetKind.pair: "a pair",
    TargetKind.catalogue: "a catalogue",
    TargetKind.blend: "a blend",
    TargetKind.run: "a run",
    TargetKind.job: "a job",
}


def target(looking: Looking, query: Query) -> dict[str, Any]:
    """Returns facts and possible views of the target; opens no data."""
    query.check_read()
    shown = looking.target
    return {
        "kind": shown.kind.value,
        "name": shown.name,
        "facts": _facts(looking),
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
        "num_positions": looking.num_positions,
        "has_positions": looking.has_positions,
        "has_steps": looking.topology is not None and looking.has_positions,
        "has_losses": looking.losses is not None,
        "has_occurrences": shown.run is not None,
        "has_texts": shown.tokenizer is not None,
        "sections": [{"id": listed.id, "title": listed.title} for listed in sections_of(shown)],
        "views": _views(looking),
        "notes": list(shown.notes),
    }


def section(looking: Looking, query: Query) -> dict[str, Any]:
    """Returns a section of the report, cached except for a job."""
    name = query.text("id")
    query.check_read()
    listed = next((each for each in sections_of(looking.target) if each.id == name), None)
    if listed is None:
        raise NotThereError(f"no section {quoted(name)}")
    sizes = None if looking.topology is None else looking.topology.batch_sizes.batch_size(0)
    with looking.making:
        found = None if looking.target.kind is TargetKind.job else looking.made.get(name)
        if found is None:
            options = ReportOptions(global_batch_size=sizes, statistics=looking.followed)
            made_section = made(listed, looking.target, options).section
            empty = Section(id=listed.id, title=listed.title, html="")
            found = looking.made[name] = (made_section or empty).as_json()
    return found


def _views(looking: Looking) -> list[str]:
    has_documents = any(source.num_documents for source in looking.target.sources)
    offered = {
        "overview": True,
        "samples": looking.has_positions,
        "documents": has_documents,
        "search": has_documents,
        "watch": looking.target.folder is not None or looking.followed is not None,
    }
    return [name for name, is_offered in offered.items() if is_offered]


def _facts(looking: Looking) -> list[tuple[str, str]]:
    shown = looking.target
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
