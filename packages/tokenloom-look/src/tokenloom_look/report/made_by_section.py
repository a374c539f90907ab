"""The section "Tokenizer and options": how the data was made according to manifests, and whether manifests agree."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from tokenloom.indexed.manifests import Manifest, SpecialToken, fingerprint_of
from tokenloom_look.html import Cell, Markup, element, facts, joined, table
from tokenloom_look.report.input_section import manifests_of
from tokenloom_look.report.section import ReportOptions, Section
from tokenloom_look.target import Target

_MOST_RECIPES = 10
_MOST_NAMES = 5
_INTERNAL = ("memory_bytes",)


def made_by_section(target: Target, _options: ReportOptions) -> Section:
    """Returns the tokenizer and the options with which the data was made, according to the pairs' manifests."""
    manifests = dict(manifests_of(target))
    missing = [
        prefix
        for prefix in dict.fromkeys(prefix for source in target.sources for prefix in source.prefixes)
        if prefix not in manifests
    ]
    recipes: dict[tuple[object, ...], list[str]] = {}
    for prefix, manifest in manifests.items():
        recipes.setdefault(_recipe(manifest), []).append(prefix)
    html: list[Cell] = []
    for prefixes in list(recipes.values())[:_MOST_RECIPES]:
        if len(recipes) > 1:
            html.append(element("h3", _names(prefixes)))
        html += [_facts(manifests[prefixes[0]]), _options_table(manifests[prefixes[0]].options)]
    if len(recipes) > _MOST_RECIPES:
        html.append(element("p", f"{len(recipes) - _MOST_RECIPES:,} more combinations are not shown.", class_="note"))
    if missing:
        html.append(element("p", f"Unknown for {_names(missing)}: there is no manifest."))
    return Section(
        id="made-by",
        title="Tokenizer and options",
        html=joined(html),
        findings=[*_findings(manifests, missing), *_mismatches(target, manifests)],
    )


def _recipe(manifest: Manifest) -> tuple[object, ...]:
    """Returns a key that is equal for pairs with the same tokenizer, dtype and options, except `key` and `split`."""
    options = {name: value for name, value in manifest.options.items() if name not in ("key", "split")}
    return (*manifest.tokenizer.fingerprint, manifest.pair.dtype, json.dumps(options, sort_keys=True))


def _facts(manifest: Manifest) -> Markup:
    made_by, pair = manifest.tokenizer, manifest.pair
    return facts(
        [
            ("tokenizer", made_by.kind),
            ("tokenizer file", made_by.path),
            ("sha256", None if made_by.sha256 is None else element("code", made_by.sha256)),
            ("vocabulary size", made_by.vocab_size),
            ("largest token in the data", pair.largest_token),
            ("token before each document", _special(made_by.bos)),
            ("token after each document", _special(made_by.eod)),
            ("engine", manifest.engine),
            ("tokenloom version", manifest.tokenloom_version),
        ]
    )


def _options_table(options: Mapping[str, object]) -> Markup:
    rows: list[list[Cell]] = [
        [name, element("code", json.dumps(value, ensure_ascii=False))]
        for name, value in options.items()
        if name not in _INTERNAL
    ]
    body = table(["option", "value"], rows)
    return element("details", element("summary", f"Options ({len(rows)})"), body)


def _special(token: SpecialToken | None) -> str:
    if token is None:
        return "none"
    return f"{token.id}" if token.text is None else f"{token.text} ({token.id})"


def _names(prefixes: Sequence[str]) -> str:
    shown = ", ".join(prefixes[:_MOST_NAMES])
    return shown if len(prefixes) <= _MOST_NAMES else f"{shown} and {len(prefixes) - _MOST_NAMES:,} others"


def _findings(manifests: Mapping[str, Manifest], missing: Sequence[str]) -> Iterator[str]:
    if missing:
        yield f"No manifest: tokenizer and integrity of {_names(missing)} are unknown."
    if len(found := {each.tokenizer.fingerprint for each in manifests.values()}) > 1:
        yield f"The data uses {len(found):,} different tokenizers, so equal ids have different meanings."
    without = [prefix for prefix, each in manifests.items() if each.tokenizer.eod is None]
    if without:
        yield f"Documents of {_names(without)} do not end with an end-of-document token (EOD)."
    for prefix, each in manifests.items():
        largest, known = each.pair.largest_token, each.tokenizer.vocab_size
        if largest is not None and known is not None and largest >= known:
            yield f"{prefix} has the token {largest:,}, but its tokenizer has only {known:,} tokens."


def _mismatches(target: Target, manifests: Mapping[str, Manifest]) -> Iterator[str]:
    """Yields a finding if the report decodes texts with a tokenizer other than the tokenizer of the data."""
    used = None if target.tokenizer is None else fingerprint_of(target.tokenizer)
    others = [prefix for prefix, each in manifests.items() if each.tokenizer.sha256 not in (None, used)]
    if used is not None and others:
        yield f"Texts of {_names(others)} are decoded with another tokenizer than the one of the data."
