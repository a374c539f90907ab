"""The section "Ledger", which accounts for every token and slot of a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tokenloom.rendering.words import LEFT, NEVER, SLOTS, WITHOUT, ledger_columns
from tokenloom.run.audit.ledger import LedgerRow, RunLedger, summed
from tokenloom.run.plan import closed_at
from tokenloom.run.run import Run
from tokenloom.run.source_progress import are_packs
from tokenloom_look.html import Cell, Markup, element, joined, table
from tokenloom_look.report.run_pieces import horizon_of, largest_rows
from tokenloom_look.report.section import ReportOptions, Section, share
from tokenloom_look.target import Target

_MOST_SLOTS = 1 << 25  # maximum number of slots to read, which takes some seconds
_MUCH = 0.05  # a larger share of tokens or slots makes a finding

_NOT_COUNTED = (
    "Tokens with loss are not counted: that would read {slots:,} slots of samples. `tokenloom ledger` counts them."
)


def ledger_section(target: Target, _options: ReportOptions) -> Section | None:
    """Returns the ledger of a run; None with Megatron's order. Counts tokens with loss only if that reads few slots."""
    if target.run is None or target.run.lock.is_megatron:
        return None
    run, horizon = target.run, horizon_of(target.run)
    slots = _slots_to_read(run, horizon.position)
    ledger = run.ledger(until=horizon.position, reads_data=slots <= _MOST_SLOTS)
    html: list[Cell] = [_sources(ledger), _sums(ledger)]
    notes = [horizon.note, _NOT_COUNTED.format(slots=slots) if slots > _MOST_SLOTS else ""]
    html += [element("p", note, class_="note") for note in notes if note]
    return Section(id="ledger", title="Ledger", html=joined(html), findings=list(_findings(ledger)))


def _slots_to_read(run: Run, position: int) -> int:
    """Returns how many slots of samples must be read to count tokens with loss; 0 if the lock is enough."""
    lock = closed_at(run.lock, position)
    if not are_packs(lock) and not run.dataset().counts_need_tokens:
        return 0
    return sum((segment.num_samples or 0) * segment.sequence_length for segment in lock.segments)


def _sources(ledger: RunLedger) -> Markup:
    def cells(rows: Iterable[LedgerRow]) -> list[Cell]:
        row = summed(rows)
        return [row.counts.samples, *ledger_columns(row.as_json()["tokens"])]

    def of_many(rest: Sequence[tuple[str, LedgerRow]]) -> list[Cell]:
        return cells(row for _, row in rest)

    rows = largest_rows(ledger.sources, lambda each: each[1].seen, lambda each: [each[0], *of_many([each])], of_many)
    columns = ["source", "samples", "tokens of its passes", "seen with loss", "without", "never seen", "left"]
    return table(columns, rows, caption=f"Tokens by source, before position {ledger.position:,}")


def _sums(ledger: RunLedger) -> Markup:
    total = ledger.total.as_json()
    tokens, slots = total["tokens"], total["slots"]
    whole = tokens["offered"] + tokens["read_twice"]
    rows: list[list[Cell]] = [["tokens of started passes", tokens["offered"], share(tokens["offered"], whole)]]
    if tokens["read_twice"]:
        rows.append(["read by two samples (long documents)", tokens["read_twice"], share(tokens["read_twice"], whole)])
    rows.append(["seen with loss", tokens["with_loss"], share(tokens["with_loss"], whole)])
    for words, name in (*WITHOUT, *NEVER, *LEFT):
        if tokens[name]:
            rows.append([words, tokens[name], share(tokens[name], whole)])
    filled: list[list[Cell]] = [
        [words, slots[name], share(slots[name], slots["all"])] for words, name in SLOTS if slots[name]
    ]
    return joined(
        [
            table(["use", "tokens", "share"], rows, caption="Tokens"),
            table(["content", "slots", "share"], filled, caption=f"Slots of {total['samples']:,} samples"),
            element("p", f"Balance: {ledger.balance:,} tokens and slots are unaccounted for."),
        ]
    )


def _findings(ledger: RunLedger) -> Iterator[str]:
    if ledger.balance:
        yield f"The ledger is not balanced: {ledger.balance:,} tokens or slots are unaccounted for."
    total = ledger.total.as_json()
    tokens, slots = total["tokens"], total["slots"]
    for words, name in (("padding", "padding"), ("denied documents", "denied")):
        if slots[name] > _MUCH * slots["all"]:
            yield f"{share(slots[name], slots['all'])} of the slots of samples are {words}."
    for words, name in NEVER:
        if tokens[name] > _MUCH * tokens["offered"]:
            yield f"{share(tokens[name], tokens['offered'])} of the tokens are never seen: {words}."
