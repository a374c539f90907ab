"""What does not go together with `order = "megatron"`, the reference's order, and why."""

from __future__ import annotations

from tokenloom.run.toml_file import Table

_TOP = {
    "documents": "the reference shuffles documents by a rule of its own",
    "windows": "the reference cuts the stream of all documents",
    "mix": "the reference mixes evenly",
    "mixing_block": "the reference mixes evenly",
    "denied": "the reference's order is stored, so nothing in it can be denied later",
}
_SOURCE = {
    "holdout": "the reference divides data by `split`, which a run does not have",
    "max_passes": "the reference repeats data as often as it takes",
}
_STAGE = {
    "passes": "the reference's blend counts samples, not passes",
    "on_exhausted": "the reference repeats data as often as it takes",
}
_HINT = "leave it out, or write `order = 1`"


def check_megatron(top: Table) -> None:
    """Refuses settings of a run in the reference's order that this order cannot follow; others were checked before.

    Raises:
        ConfigError: there is one; the message names it and says why.
    """
    _refuse(top, _TOP)
    if top.values["seed"] >= 1 << 32:
        message = f'expected `seed` in [0, 2**32) with `order = "megatron"`, found {top.values["seed"]}'
        top.refuse("seed", message)
    sources = top.table("sources")
    for name, value in sources.values.items():
        if isinstance(value, dict):
            _refuse(sources.table(name, name=f" of source {name!r}"), _SOURCE)
    stages = top.tables("stages", hint="")
    if len(stages) > 1:
        message = f'expected one stage with `order = "megatron"`, found {len(stages)}'
        hint = "leave the others out, or write `order = 1`"
        stages[1].refuse(None, f"{message}: the reference's order cannot change while it runs", hint=hint)
    _refuse(stages[0], _STAGE)
    if "tokens" not in stages[0] and "samples" not in stages[0]:
        message = 'expected `tokens` or `samples` with `order = "megatron"`, found none'
        stages[0].refuse(None, f"{message}: the reference's order is stored, so it has an end")


def _refuse(table: Table, reasons: dict[str, str]) -> None:
    for key, reason in reasons.items():
        if key in table:
            message = f'expected no `{key}`{table.name} with `order = "megatron"`, found it: {reason}'
            table.refuse(key, message, hint=_HINT)
