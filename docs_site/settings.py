"""The reference of settings: those of datasets, corpora, packing and storage, and the keys of `run.toml`."""

from __future__ import annotations

import dataclasses
import inspect

from docs_site.docstrings import parse, rows_of, summary, table
from docs_site.names import _annotation, _default, namespaces, public_names
from tokenloom.run import settings

KEYS_OF_RUN = {
    "At the top": (settings.RunSettings, settings.TOP_KEYS),
    "A source, in `[sources]`": (settings.SourceSettings, settings.SOURCE_KEYS),
    "A stage, in `[[stages]]`": (settings.StageSettings, settings.STAGE_KEYS),
    "What is denied, in `[[denied]]`": (settings.DenialSettings, settings.DENIAL_KEYS),
}
"""The keys of each part of a `run.toml`, and the class whose docstring says what they mean."""

OTHER_NAMES = {"from": "start", "mix": "mixing_block"}


def page() -> str:
    """Returns the page."""
    parts = [
        "# Settings",
        "What is set in Python has a class; its whole documentation is where its name leads.",
        _classes(),
    ]
    parts += ["## Keys of run.toml", "[Runs](/docs/runs.md#runtoml) shows a file with all of them."]
    for title, (kind, keys) in KEYS_OF_RUN.items():
        items = parse(kind.__doc__).items
        rows = [(f"`{key}`", items.get(OTHER_NAMES.get(key, key), "")) for key in keys]
        parts += [f"### {title}", table(("key", "meaning"), rows)]
    return "\n\n".join(parts) + "\n"


def _classes() -> str:
    parts = []
    for namespace in namespaces():
        for name, value in public_names(namespace).items():
            is_settings = name.endswith(("Config", "Settings", "Limits", "Budget"))
            if not (is_settings and inspect.isclass(value) and dataclasses.is_dataclass(value)):
                continue
            items: dict[str, str] = {}
            for base in reversed(value.__mro__):
                items |= parse(base.__doc__).items if base.__module__.startswith("tokenloom") else {}
            types = {
                each.name: (
                    _annotation(each.type),
                    "" if each.default is dataclasses.MISSING else _default(each.default),
                )
                for each in dataclasses.fields(value)
                if each.init and not each.name.startswith("_")
            }
            link = f"[`tokenloom.{namespace}.{name}`](/reference/{namespace}.md#{name.lower()})"
            shown = table(("name", "type", "default", "meaning"), rows_of(items, types))
            parts += [f"## {name}", f"{summary(value.__doc__)} {link}", shown]
    return "\n\n".join(parts)
