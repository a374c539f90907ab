"""`tokenloom run amend`: change a run from a position on."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, ClassVar

from tokenloom.cli.json_output import print_json
from tokenloom.cli.options import Either, OneOf, Written
from tokenloom.cli.run_common import BatchSizes, RunPath
from tokenloom.cli.run_lock import described, print_locked, status_of
from tokenloom.cli.values import named_data, token_count, weights
from tokenloom.errors import ConfigError
from tokenloom.run.amend import Amendment, amend_run
from tokenloom.run.lock import lock_path, read_lock
from tokenloom.setting_types import Count, Number

_STAGE = "a new stage, in place of what is left of the one that it cuts short"
_DATA = "data"


@dataclass(frozen=True, kw_only=True)
class Options(RunPath, BatchSizes):
    """Change a run from a position on, which training has not read yet: edit run.toml, as a person would, and lock the
    run anew. Prints the edit and what it means. Both files change, or none: what would move a sample before the
    position is refused.

    Attributes:
        at_position: from where on, as samples from 0 on.
        at_step: from where on, as steps from 0 on.
        weights: shares, such as web=5,code=5.
        stage_name: name of the stage (default "from" and the position).
        sequence_length: tokens per sample.
        tokens: its tokens, such as 50B.
        samples: its samples.
        add_source: a new source, such as books='data/books/*'; may be repeated.
        deny: documents to be padding, such as web:12345, one a line.
        grow: take up pairs that sources did not have.
        dry_run: only say what would change.
        json: print one JSON object: path, written, position, diff, and what `run lock` prints.
    """

    EITHER: ClassVar[Either] = (("at_position", "at_step"), ("tokens", "samples"))
    ONE_OF: ClassVar[OneOf] = {"--at-step or --at-position": ("at_position", "at_step")}

    at_position: Number | None = None
    at_step: Number | None = None
    weights: Annotated[Sequence[tuple[str, Fraction]], Written(metavar="NAME=W,…", parse=weights, group=_STAGE)] = ()
    stage_name: Annotated[str | None, Written(metavar="NAME", group=_STAGE)] = None
    sequence_length: Annotated[Count | None, Written(metavar="S", group=_STAGE)] = None
    tokens: Annotated[int | None, Written(parse=token_count, group=_STAGE)] = None
    samples: Annotated[int | None, Written(parse=token_count, group=_STAGE)] = None
    add_source: Annotated[
        tuple[tuple[str, str], ...], Written(metavar="NAME=DATA", parse=named_data, is_repeated=True, group=_DATA)
    ] = ()
    deny: Annotated[str | None, Written(metavar="FILE", group=_DATA)] = None
    grow: Annotated[bool, Written(group=_DATA)] = False
    dry_run: bool = False
    json: bool = False


def run(options: Options) -> int:
    """Amends, and prints the edit and what it means."""
    lock = read_lock(lock_path(options.run_path))
    position = options.position_of(options.at_position, options.at_step, lock)
    assert position is not None  # one of both is needed
    sources = dict(options.add_source)
    if len(sources) < len(options.add_source):
        message = "expected each new source once, found one twice in --add-source"
        raise ConfigError(message, hint="list several data of a source in run.toml")
    amended = amend_run(
        options.run_path,
        Amendment(
            position=position,
            weights=tuple(options.weights),
            stage_name=options.stage_name,
            sequence_length=options.sequence_length,
            tokens=options.tokens,
            samples=options.samples,
            sources=sources,
            denied=options.deny,
            grows=options.grow,
        ),
        write=not options.dry_run,
    )
    diff = list(
        difflib.unified_diff(
            amended.before.splitlines(),
            amended.after.splitlines(),
            f"{options.run_path} before",
            f"{options.run_path} from position {position} on",
            n=1,
            lineterm="",
        )
    )
    path = lock_path(options.run_path)
    if options.json:
        described_lock = described(amended.locked, position=position)
        head = {"path": path, "written": not options.dry_run, "position": position, "diff": diff}
        print_json({**head, **described_lock})
        return status_of(amended.locked.lock)
    print(*diff, sep="\n", end="\n\n" if diff else "")
    print_locked(amended.locked, path=path, is_written=not options.dry_run, position=position)
    return status_of(amended.locked.lock)
