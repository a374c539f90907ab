"""What the data were made by: tokenizer, special tokens, options, program; and whether all of them agree."""

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
    """Returns tokenizer and options of the data by the manifests."""
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
        html.append(element("p", f"{len(recipes) - _MOST_RECIPES:,} other ways are not shown.", class_="note"))
    if missing:
        html.append(element("p", f"Nobody wrote down what {_names(missing)} was made by: there is no manifest."))
    return Section(
        id="made-by",
        title="What the data were made by",
        html=joined(html),
        findings=[*_findings(manifests, missing), *_strangers(target, manifests)],
    )


def _recipe(manifest: Manifest) -> tuple[object, ...]:
    """Returns the identity of a way of making data."""
    options = {name: value for name, value in manifest.options.items() if name not in ("key", "split")}
    return (*manifest.tokenizer.fingerprint, manifest.pair.dtype, json.dumps(options, sort_keys=True))


def _facts(manifest: Manifest) -> Markup:
    made_by, pair = manifest.tokenizer, manifest.pair
    return facts(
        [
            ("tokenizer", made_by.kind),
            ("its file", made_by.path),
            ("its sha256", None if made_by.sha256 is None else element("code", made_by.sha256)),
            ("its vocabulary", made_by.vocab_size),
            ("largest token in the data", pair.largest_token),
            ("before each document", _special(made_by.bos)),
            ("after each document", _special(made_by.eod)),
            ("engine", manifest.engine),
            ("version of tokenloom", manifest.tokenloom_version),
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
        return "nothing"
    return f"{token.id}" if token.text is None else f"{token.text} ({token.id})"


def _names(prefixes: Sequence[str]) -> str:
    shown = ", ".join(prefixes[:_MOST_NAMES])
    return shown if len(prefixes) <= _MOST_NAMES else f"{shown} and {len(prefixes) - _MOST_NAMES:,} others"


def _findings(manifests: Mapping[str, Manifest], missing: Sequence[str]) -> Iterator[str]:
    if missing:
        yield f"Without a manifest, nobody knows what {_names(missing)} was made by, or whether it is still whole."
    if len(found := {each.tokenizer.fingerprint for each in manifests.values()}) > 1:
        yield f"The data were made by {len(found):,} tokenizers: their ids do not mean the same."
    without = [prefix for prefix, each in manifests.items() if each.tokenizer.eod is None]
    if without:
        yield f"Nothing marks the end of a document (EOD) in {_names(without)}."
    for prefix, each in manifests.items():
        largest, known = each.pair.largest_token, each.tokenizer.vocab_size
        if largest is not None and known is not None and largest >= known:
            yield f"{prefix} has the token {largest:,}, but its tokenizer knows only {known:,}."


def _strangers(target: Target, manifests: Mapping[str, Manifest]) -> Iterator[str]:
    """Yields a finding if texts are decoded by another tokenizer than the one of the data."""
    used = None if target.tokenizer is None else fingerprint_of(target.tokenizer)
    strange = [prefix for prefix, each in manifests.items() if each.tokenizer.sha256 not in (None, used)]
    if used is not None and strange:
        yield f"Texts of {_names(strange)} are shown by another tokenizer than the one that made them."
