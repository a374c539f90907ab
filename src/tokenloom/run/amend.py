"""Changing a run from a position on: `run.toml` is edited, the run is locked anew, and nothing before it moves.

Both files change, or none does: what would be locked is worked out before anything is written.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from fractions import Fraction

from tokenloom.errors import ConfigError
from tokenloom.run.lock import LockedSegment, RunLock, lock_path, read_lock
from tokenloom.run.locking import LockedRun, lock_run, write_both
from tokenloom.run.members import Reading
from tokenloom.run.settings import RunSettings
from tokenloom.run.stage_settings import Shares, StageSettings
from tokenloom.run.toml_edit import RunEdit
from tokenloom.run.toml_file import did_you_mean, read_toml
from tokenloom.storage.addresses import is_remote
from tokenloom.storage.publishing import OutputLock


@dataclass(frozen=True, slots=True, kw_only=True)
class Amendment:
    """A change of a run from a position on.

    Attributes:
        position: the first position that may hold something else.
        weights: shares of the sources in a new stage that begins there; empty for those of now.
        stage_name: name of the new stage; None for one of its position.
        sequence_length: tokens per sample in the new stage; None for that of now.
        tokens, samples: size of the new stage; with none, it is what is left of the stage that it cuts short.
        sources: data of new sources, by name.
        denied: a file that lists documents to be padding from there on; None for none.
        denied_documents: names of such documents.
        reason: why they are denied, in words.
        grows: whether sources take up pairs that they did not have.
    """

    position: int
    weights: tuple[tuple[str, Fraction], ...] = ()
    stage_name: str | None = None
    sequence_length: int | None = None
    tokens: int | None = None
    samples: int | None = None
    sources: Mapping[str, str] | None = None
    denied: str | None = None
    denied_documents: tuple[str, ...] = ()
    reason: str | None = None
    grows: bool = False

    @property
    def has_stage(self) -> bool:
        """Whether a new stage begins."""
        return bool(self.weights) or any(
            each is not None for each in (self.stage_name, self.sequence_length, self.tokens, self.samples)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Amended:
    """What an amendment came to.

    Attributes:
        before, after: text of `run.toml`.
        locked: the lock before, and the new one.
    """

    before: str
    after: str
    locked: LockedRun


def amend_run(
    path: str | os.PathLike[str], amendment: Amendment, *, reading: Reading | None = None, write: bool = True
) -> Amended:
    """Changes a run from a position on.

    Args:
        path: path of `run.toml`; its lock lies beside it.
        amendment: the change.
        reading: how to read data.
        write: whether to write both files; else only to see what they would be.

    Raises:
        ConfigError: the change is none, or a position before it would move; both files are as they were.
        OutputBusyError: somebody else is changing the run; likewise.
        DatasetNotFoundError, DatasetFormatError, TokenizerError: data are missing, damaged or changed; likewise.
    """
    path = os.fspath(path)
    with OutputLock(lock_path(path)) if write else nullcontext():  # else one of two changes would be lost
        return _amended(path, amendment, reading=reading, write=write)


def _amended(path: str, amendment: Amendment, *, reading: Reading | None, write: bool) -> Amended:
    old = read_lock(lock_path(path))
    before = read_toml(path)
    edit = RunEdit(before, path=path)
    settings = edit.settings
    _check(amendment, settings, old)
    for name, data in (amendment.sources or {}).items():
        edit.add_source(name, _from_folder(data, settings))
    if amendment.has_stage:
        _add_stage(edit, amendment, old)
    files = () if amendment.denied is None else (_from_folder(amendment.denied, settings),)
    for documents in (*files, amendment.denied_documents):
        if documents:
            edit.append_denial(documents, start=amendment.position, reason=amendment.reason)
    after, new = edit.result()
    locked = lock_run(path, at=amendment.position, settings=new, reading=reading, write=False)
    _check_growth(amendment, locked)
    if write:
        write_both(path, after, locked.lock)
    return Amended(before=before, after=after, locked=locked)


def _check(amendment: Amendment, settings: RunSettings, old: RunLock) -> None:
    """Checks that there is something to change, and that it may begin there."""
    denies = amendment.denied is not None or bool(amendment.denied_documents)
    if not (amendment.has_stage or amendment.sources or denies or amendment.grows):
        message = "expected a change: a stage, sources, documents to deny, or new data to take up; found none"
        raise ConfigError(message, hint="such as `--weights web=5,code=5`")
    if settings.content_sha256 != old.content_sha256 and not amendment.grows:
        message = f"expected `{settings.path}` as it was locked, found it changed since"
        raise ConfigError(message, hint="lock it first: `tokenloom run lock`; new data are taken up with --grow, too")
    if amendment.position < old.consumed:
        message = f"training has read the {old.consumed} positions before {old.consumed}, found a change at "
        message += f"{amendment.position}"
        hint = f"name position {old.consumed} or a later one; after going back to an earlier checkpoint, say so first: "
        hint += "`tokenloom run lock --consumed-samples N --drop consumed`"
        raise ConfigError(message, hint=hint)
    if (end := old.num_samples) is not None and amendment.position > end:
        message = f"expected a position in the run, up to {end}, found {amendment.position}"
        raise ConfigError(message)


def _check_growth(amendment: Amendment, locked: LockedRun) -> None:
    """Checks that new data are taken up where that was asked for, and nowhere else."""
    assert locked.old is not None
    known = {source.name: len(source.pairs) for source in locked.old.sources}
    grown = [
        (source.name, source.pairs[known[source.name]].prefix)
        for source in locked.lock.sources
        if source.name in known and len(source.pairs) > known[source.name]
    ]
    if amendment.grows and not grown:
        message = "expected new pairs in `data` of a source, found none that the lock does not have"
        raise ConfigError(message, hint="write them where `data` of a source finds them, or change `data`")
    if grown and not amendment.grows:
        name, prefix = grown[0]
        message = f"expected no new pairs, found `{prefix}` in `data` of source {name!r}, which the lock does not have"
        raise ConfigError(message, hint="take it up from this position on with --grow, or move it away")


def _add_stage(edit: RunEdit, amendment: Amendment, old: RunLock) -> None:
    """Adds a stage that begins at the position of an amendment."""
    settings, position = edit.settings, amendment.position
    path = settings.path
    segment = next(each for each in reversed(old.segments) if each.start < position or each.start == 0)
    current = next((stage for stage in settings.stages if stage.name == segment.stage), None)
    if current is None:
        message = f"the lock has a stage {segment.stage!r}, which `{path}` has not"
        raise ConfigError(message, hint=f"lock it first: tokenloom run lock {path}")
    start = min(each.start for each in old.segments if each.stage == current.name)
    following = [each.start for each in old.segments if each.start >= position and each.stage != current.name]
    end = following[0] if following else old.num_samples
    if position == end and not following:
        if amendment.tokens is None and amendment.samples is None:
            message = f"expected a size for a stage behind the end of the run, position {position}, found none"
            raise ConfigError(message, hint="such as `--tokens 50B`")
        edit.insert_stage(_new_stage(amendment, settings, old, segment, None), after=current.name)
        return
    if position in (start, end):
        name = current.name if position == start else next(each.stage for each in old.segments if each.start == end)
        message = f"expected a position within a stage, found {position}, the first of stage {name!r}"
        hint = f"nothing of that stage was read: change it in `{path}`, and lock with --consumed-samples {position}"
        raise ConfigError(message, hint=hint)
    left = None if end is None else end - position
    weights = _weights_of(old, segment) if current.passes is not None else None
    edit.set_samples(current.name, position - start, weights=weights)
    edit.insert_stage(_new_stage(amendment, settings, old, segment, left), after=current.name)


def _new_stage(
    amendment: Amendment, settings: RunSettings, old: RunLock, segment: LockedSegment, left: int | None
) -> StageSettings:
    """Returns the new stage.

    Args:
        amendment: the change.
        settings: the run, with its new sources.
        old: the lock.
        segment: the segment before the new stage.
        left: samples that the new stage takes the place of; None for no end.
    """
    current = next(stage for stage in settings.stages if stage.name == segment.stage)
    length = amendment.sequence_length or current.sequence_length
    tokens, samples = amendment.tokens, amendment.samples
    if tokens is None and samples is None and left is not None:
        samples = left if length == current.sequence_length else None
        tokens = left * current.sequence_length if samples is None else None
    return StageSettings(
        name=amendment.stage_name or f"from {amendment.position}",
        sequence_length=length,
        tokens=tokens,
        samples=samples,
        weights=_given_weights(amendment, settings) or current.weights or _weights_of(old, segment),
        on_exhausted=current.on_exhausted,
    )


def _given_weights(amendment: Amendment, settings: RunSettings) -> Shares:
    names = [source.name for source in settings.sources]
    given = dict(amendment.weights)
    for name in given:
        if name not in names:
            message = f"expected weights of sources of the run, found one of {name!r}"
            hint = did_you_mean(name, names) or "add it with `--add-source NAME=DATA`"
            raise ConfigError(message, hint=hint)
    shares = tuple((name, given[name]) for name in names if given.get(name))
    if given and not shares:
        message = "expected a weight above 0, found only 0"
        raise ConfigError(message)
    return shares


def _weights_of(old: RunLock, segment: LockedSegment) -> Shares:
    return tuple((old.sources[source].name, Fraction(weight)) for source, weight in segment.weights)


def _from_folder(name: str, settings: RunSettings) -> str:
    """Returns a path of the working directory as it is from the folder of the run on."""
    if is_remote(name) or os.path.isabs(name) or not settings.folder:
        return name
    return os.path.relpath(name, settings.folder)
