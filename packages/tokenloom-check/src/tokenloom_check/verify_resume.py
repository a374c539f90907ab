"""Checks that a killed and resumed loader yields every sample once, in the order of an uninterrupted reading.

`tokenloom verify-resume` and `check_resume` run cases: ranks read some batches and are killed, then new ranks resume.
"""

from __future__ import annotations

import os
import random
import re
import secrets
import shlex
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate
from typing import Annotated, Any, NamedTuple, TypeAlias

from tokenloom.cli.options import JsonOption, Written, arguments_of, count, refuse_usage
from tokenloom.cli.output import Answer, say
from tokenloom.errors import ConfigError, ConformanceError
from tokenloom.setting_types import Count, Number
from tokenloom_check.resume_readings import (
    CutSamples,
    Factory,
    FactoryProcesses,
    GlobalBatch,
    InProcess,
    Point,
    Program,
    RankFailedError,
    RankHungError,
    Reading,
    Runner,
    enough_batches,
    is_function_name,
    load_function,
    name_function,
    num_samples_of,
)

ORDERS = ("strict", "batch", "any")  # what must keep its order: samples, rank after rank; global batches; nothing
_NUM_RANDOM_KILLS = 3
_WIDTH = 80
_MAX_DETAIL_LINES = 6
_MAX_PROBLEMS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeSettings:
    """The cases that `check_resume` tries.

    Attributes:
        num_batches: number of global batches to compare, from the first.
        kill_at: batches before a kill (default: none, all but one, ends of epochs, some at random).
        world_sizes: number of ranks, or before:after the kill where it changes, such as "1,2:4" (default 1,2).
        epochs: number of times that a loader is iterated.
        order: what must keep its order: samples (strict), global batches (default) or nothing (any).
        seed: seed for the random kill points; the report prints it.

    Raises:
        ConfigError: `order` is unknown, or `world_sizes` is empty.
    """

    num_batches: Count = 24
    kill_at: tuple[Number, ...] = ()
    world_sizes: Sequence[tuple[int, int]] = ((1, 1), (2, 2))
    epochs: Count = 1
    order: str = "batch"
    seed: Number | None = None

    def __post_init__(self) -> None:
        if not self.world_sizes:
            raise ConfigError("`world_sizes` must not be empty")
        if self.order not in ORDERS:
            raise ConfigError(f"`order` must be {', '.join(ORDERS)}, got {self.order!r}")


def check_resume(
    factory: Callable[..., Any] | str,
    settings: ResumeSettings | None = None,
    *,
    state_of: Callable[[Any, int], Any] | str | None = None,
    samples: CutSamples = "auto",
    timeout: float = 60.0,
    in_process: bool = False,
) -> ResumeReport:
    """Checks that killed and resumed loaders repeat no sample, miss none, and keep their order.

    A loader is any iterable of batches. In each case, ranks read up to a point and are killed, and new ranks resume
    there. All samples are compared with an uninterrupted reading, by content. Ranks are processes killed by SIGKILL.

    Example:
        >>> class Loader:
        ...     def __init__(self, rank, world_size, consumed):
        ...         self.numbers = range(consumed + 2 * rank, 40, 2 * world_size)
        ...     def __iter__(self):
        ...         return ([number, number + 1] for number in self.numbers)
        >>> def make_loader(rank, world_size, consumed):
        ...     return Loader(rank, world_size, consumed)
        >>> settings = ResumeSettings(world_sizes=[(1, 1), (2, 4)], num_batches=6, seed=1)
        >>> report = check_resume(make_loader, settings, in_process=True)
        >>> report.ok, len(report.cases)
        (True, 18)

    Args:
        factory: returns the loader of a rank; a module-level function, or its name as `path/to/file.py:make_loader` or
            `package.module:make_loader`. Its parameters are any of `rank`, `world_size`, `state` (of this rank, None at
            the start), `states` (of all ranks), `consumed` (number of samples, all ranks) and `num_batches` (of this
            rank).
        settings: the cases to try.
        state_of: returns the picklable state of a loader; called with the loader and the number of batches it has
            returned. By default, `loader.state_dict()`.
        samples: a function that takes a batch and returns its samples. "auto": the rows of its columns, or the items of
            a list.
        timeout: maximum seconds that a rank may take for one batch.
        in_process: reads all ranks in this process without killing it: faster, and functions need no name.

    Raises:
        ConformanceError: samples are repeated, missing or out of order, or the loader fails or hangs.
        ConfigError: the factory takes neither states nor counts or cannot be imported, or a setting is out of range.
    """
    runner: Runner
    if in_process:
        name = getattr(factory, "__name__", str(factory))
        taken = None if state_of is None else load_function(state_of)
        runner = InProcess(Factory(load_function(factory), state_of=taken, samples=samples))
    else:
        name = name_function(factory)
        names = [each if each in (None, "auto") else name_function(each) for each in (state_of, samples)]
        runner = FactoryProcesses(name, state_of=names[0], samples=str(names[1]), timeout=timeout)
    report = verify_resume(runner, name, settings or ResumeSettings())
    if not report.ok:
        raise ConformanceError(str(report))
    return report


def verify_resume(runner: Runner, name: str, settings: ResumeSettings) -> ResumeReport:
    """Runs all cases, closes the runner and returns the report.

    Raises ConformanceError if the uninterrupted reading fails or yields no samples.
    """
    if settings.seed is None:
        settings = replace(settings, seed=secrets.randbelow(2**32))
    cases: list[ResumeCase] = []
    references: dict[int, _Reference] = {}
    with closing(runner):
        for before, after in settings.world_sizes:
            if is_first := before not in references:
                references[before] = _Reference(runner, name, settings, before)
            cases += references[before].cases(after, is_first=is_first)
    left_out = sorted(set().union(*(reference.found.left_out for reference in references.values())))
    return ResumeReport(name=name, settings=settings, cases=tuple(cases), left_out=tuple(left_out))


# `Reading.take_state` by kind of case; "now" for others.
_TAKE_STATE = {"resumed": "settled", "between epochs": "after epoch", "state kept": "kept"}


class _Reference:
    """Reads without interruption with one world size, and runs and compares the cases that start with it."""

    def __init__(self, runner: Runner, name: str, settings: ResumeSettings, world_size: int) -> None:
        self._runner, self._settings, self._world_size = runner, settings, world_size
        more = max(settings.num_batches, *(max(pair) for pair in settings.world_sizes))
        begin = Point(epochs=settings.epochs)
        reading = Reading(world_size=world_size, begin=begin, stop_after=settings.num_batches + more)
        try:
            self.found = runner.run(reading)
        except RankFailedError as error:
            message = f"{name} failed without a kill, with world size {world_size}: {error.message}"
            raise ConformanceError(message, hint=error.hint) from error
        self._batches = self.found.batches[: settings.num_batches]
        self._after = self.found.batches[settings.num_batches :]
        self._num_samples = num_samples_of(self._batches)
        if not self._num_samples:
            message = f"{name} returned no samples with world size {world_size}"
            hint = "call `tokenloom_check.record_batch` in the program" if isinstance(runner, Program) else None
            raise ConformanceError(message, hint=hint)
        if isinstance(runner, Program) and self.found.point is not None and not self.found.point.num_batches:
            message = f"{name} wrote no checkpoint in {len(self.found.batches)} batches"
            hint = "call `tokenloom_check.record_checkpoint` after each checkpoint, or raise `num_batches`"
            raise ConformanceError(message, hint=hint)
        if max(settings.kill_at, default=0) >= len(self._batches):
            message = f"`kill_at` must be below {len(self._batches)}, the number of batches"
            raise ConfigError(f"{message}, got {max(settings.kill_at)}")

    def cases(self, after: int, *, is_first: bool) -> list[ResumeCase]:
        done: list[ResumeCase] = []
        none = Differences(num_samples=self._num_samples)
        for kind, kills, *later in self._plans(after, is_first=is_first):
            sizes = (self._world_size, *later)
            case = ResumeCase(kind=kind, kills=kills, world_sizes=sizes, differences=none)
            is_sound = all(each.ok for each in done if each.kind == "resumed" and each.world_sizes == sizes)
            try:
                done.append(self._run(case, is_sound=is_sound))
            except RankFailedError as error:
                done.append(replace(case, error=error.message, detail=error.hint))
                if isinstance(error, RankHungError):
                    break  # each hang costs the whole timeout
        return done

    def _plans(self, after: int, *, is_first: bool) -> Iterator[tuple[Any, ...]]:
        """Yields (kind, batches before each kill, world size after each kill) of all cases."""
        settings, count, is_program = self._settings, len(self._batches), isinstance(self._runner, Program)
        rng = random.Random(f"{settings.seed} {self._world_size}:{after}")
        ends = [end for end in self.found.epoch_ends if end < count]
        earliest = 1 + min(self.found.checkpoints, default=0)
        inner = range(earliest, count - 1)
        chosen = rng.sample(inner, min(_NUM_RANDOM_KILLS, len(inner))) if not settings.kill_at else ()
        points = sorted(set(settings.kill_at or (0, count - 1, *ends, *chosen)))
        if is_first:
            yield "read again", ()
        for point in points:
            if point or not is_program:
                yield "resumed", (point,), after
        for end in ends if not is_program else ():
            yield "between epochs", (end,), after
        if count > earliest + 1:
            first = rng.randrange(earliest, max(count // 2, earliest + 1))
            second = rng.randrange(earliest, earliest + max(count // 4, 1))
            yield "resumed twice", (first, second), after, self._world_size
        if is_first and not is_program and count > 2:
            chosen = [point for point in settings.kill_at if 0 < point < count - 1]
            point = max(chosen) if chosen else random.Random(settings.seed).randrange(1, count - 1)
            yield "state kept", (point,), after
            yield "loaded twice", (point,), after

    def _run(self, case: ResumeCase, *, is_sound: bool) -> ResumeCase:
        """Runs one case; `is_sound`: all cases of kind "resumed" with these world sizes passed."""
        batches: list[GlobalBatch] = []
        begun = 0
        point = Point(epochs=self._settings.epochs)
        for place, world_size in enumerate(case.world_sizes):
            is_last = place == len(case.kills)
            left = self._num_samples - num_samples_of(batches)
            if is_last and left <= 0:
                break
            begun = len(batches)
            reading = Reading(
                world_size=world_size,
                begin=point,
                stop_after=None if is_last else case.kills[place],
                num_samples=left + self.found.ended if is_last else None,
                take_state=None if is_last else _TAKE_STATE.get(case.kind, "now"),
                load_twice=is_last and case.kind == "loaded twice",
            )
            found = self._runner.run(reading)
            if found.point is None or is_last:
                batches += found.batches
                break
            batches += found.batches[: found.point.num_batches - point.num_batches]
            point = found.point
        order = self._settings.order
        differences = compare(self._batches, batches, after=self._after, order=order)
        if self.found.ended and not self._after and not differences.any:
            differences = compare(self._batches, batches, order=order, is_end=True)
        remark = self._remark(case, batches, begun, is_sound=is_sound) if differences.any else None
        return replace(case, differences=differences, remark=remark)

    def _remark(self, case: ResumeCase, batches: Sequence[GlobalBatch], begun: int, *, is_sound: bool) -> str | None:
        """Returns the likely cause of the differences, if known."""
        if case.kind == "read again":
            return "two uninterrupted readings differ: the order depends on more than the arguments of the factory"
        if case.kind == "state kept" and is_sound:
            return "the state changed while the loader continued: `state_dict` must return a copy"
        if case.kind == "loaded twice" and is_sound:
            return "the first loader changed the state it resumed from: `load_state_dict` must copy it"
        if begun >= len(batches):
            return "the resumed loader returned no batches"
        readings = self.found.batches
        expected = len(enough_batches(readings, num_samples_of(batches[:begun])))
        wanted = _places([batches[begun]]).keys()
        following = [_places(enough_batches(readings[k:], len(wanted))) for k in range(len(readings))]
        known = [k for k, places in enumerate(following) if wanted <= places.keys()]
        if expected in known:
            return None
        if not known and len(set(case.world_sizes)) > 1:
            return "the position after the resume depends on the world size: the state or count is not rescaled"
        if not known:
            return "the first batch after the resume is not in the uninterrupted reading: the shuffle differs"
        at = min(known, key=lambda number: abs(number - expected))
        resumed = f"resumed at batch {at} instead of {expected}"
        if at == 0:
            return f"{resumed}: the loader ignores its state or `consumed`"
        if at < expected:
            return f"{resumed}: the state is from an earlier batch"
        return f"{resumed}: the state counts batches that were not returned yet, such as prefetched ones"


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstDifference:
    """The first difference of a resumed reading."""

    kind: str  # "repeated", "missing", "unknown" or "reordered"
    # index of the global batch in the resumed reading, counted from the start of the data; for "missing", in the
    # uninterrupted reading
    batch: int
    rank: int  # the rank in that batch
    expected_batch: int | None  # the batch of the uninterrupted reading with this sample; None if there is none
    fingerprint: str  # fingerprint of the sample
    sample: str  # short text of the sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """How many samples of a resumed reading differ from the uninterrupted one; readings are compared as multisets."""

    num_samples: int  # number of samples that were compared
    repeated: int = 0  # samples read more often than in the uninterrupted reading
    missing: int = 0  # samples not read, or less often
    unknown: int = 0  # samples that are not in the uninterrupted reading at all
    reordered: int = 0  # other samples, read at a place that the order does not allow
    # the first difference, of the first kind in the order above; None without differences
    first: FirstDifference | None = None

    @property
    def any(self) -> bool:
        return self.first is not None


class _Place(NamedTuple):
    """A sample with its batch and rank."""

    fingerprint: str
    sample: str
    batch: int
    rank: int


_Places: TypeAlias = dict[tuple[str, int], _Place]
"""The samples of a reading in order, by fingerprint and number of equal samples before."""


def _places(batches: Iterable[GlobalBatch]) -> _Places:
    found, counts = _Places(), Counter[str]()
    for number, batch in enumerate(batches):
        for rank, samples in enumerate(batch):
            for fingerprint, words in samples:
                found[fingerprint, counts[fingerprint]] = _Place(fingerprint, words, number, rank)
                counts[fingerprint] += 1
    return found


def compare(
    expected: Sequence[GlobalBatch],
    found: Sequence[GlobalBatch],
    *,
    after: Sequence[GlobalBatch] = (),
    order: str = "batch",
    is_end: bool = False,
) -> Differences:
    """Compares two readings from the start of the data: `expected`, uninterrupted, and `found`, resumed.

    The last batch of `found` may contain further samples, because a resume can change the size of global batches.
    `after` is the continuation of the uninterrupted reading. With the order "batch", a sample may be anywhere in its
    global batch; if sizes changed, in any batch that overlaps with the expected one. `is_end`: the data ends after
    `expected`, so further samples are faults.
    """
    found = found if is_end else enough_batches(found, num_samples_of(expected))
    wanted, given, beyond = _places(expected), _places(found), _places(after)
    surplus = [place for key, place in given.items() if key not in wanted]
    faults = {
        "repeated": [place for place in surplus if (place.fingerprint, 0) in wanted],
        "missing": [place for key, place in wanted.items() if key not in given],
        # a sample read too early is no fault: the gap before it is
        "unknown": [given[key] for key in given if (key[0], 0) not in wanted and key not in beyond],
        "reordered": _moved(wanted, given, order),
    }
    first = None
    if gravest := next((kind for kind, places in faults.items() if places), None):
        place = faults[gravest][0]
        same = wanted.get((place.fingerprint, 0))
        first = FirstDifference(kind=gravest, expected_batch=same.batch if same else None, **place._asdict())
    counts = {kind: len(places) for kind, places in faults.items()}
    return Differences(num_samples=len(wanted), first=first, **counts)


def _moved(wanted: _Places, given: _Places, order: str) -> list[_Place]:
    """Returns the samples of `given` that are in both readings, but at a place in `given` that `order` forbids."""
    before = {key: place for key, place in wanted.items() if key in given}
    now = {key: place for key, place in given.items() if key in wanted}
    if order == "any":
        return []
    if order == "strict":
        return [now[key] for key, other in zip(now, before, strict=True) if key[0] != other[0]]
    ranges, others = _ranges(now), _ranges(before)
    return [
        place
        for key, place in now.items()
        if ranges[key].start >= others[key].stop or others[key].start >= ranges[key].stop
    ]


def _ranges(places: _Places) -> dict[tuple[str, int], range]:
    """Returns, by sample, the range of its batch in the reading, counted in samples."""
    sizes = Counter(place.batch for place in places.values())  # ascending, like places
    ends = dict(zip(sizes, accumulate(sizes.values()), strict=True))
    return {key: range(ends[place.batch] - sizes[place.batch], ends[place.batch]) for key, place in places.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeCase:
    """The result of one case."""

    # "resumed"; "between epochs": the state is from the end of an epoch; "resumed twice"; "state kept": the state is
    # pickled after the loader has continued; "loaded twice": another loader has resumed from the state before; "read
    # again": no kill
    kind: str
    kills: tuple[int, ...]  # number of batches between a kill and the previous one
    world_sizes: tuple[int, ...]  # number of ranks before, between and after the kills
    differences: Differences  # differences from the uninterrupted reading
    error: str | None = None  # the message of a failure; None if all ranks ran
    detail: str | None = None  # further lines about the error
    remark: str | None = None  # the likely cause of the differences

    @property
    def ok(self) -> bool:
        return self.error is None and not self.differences.any

    @property
    def counts(self) -> dict[str, int]:
        """Returns the number of differing samples, by kind of difference."""
        found = self.differences
        kinds = ("repeated", "missing", "unknown", "in another order")
        return dict(zip(kinds, (found.repeated, found.missing, found.unknown, found.reordered), strict=True))

    def as_json(self) -> dict[str, Any]:
        values = asdict(self)
        differences: dict[str, Any] = values.pop("differences")
        return {"ok": self.ok} | differences | values

    def row(self) -> str:
        words = ["error"] if self.error is not None else [f"{count:,}" for count in self.counts.values()]
        return _row(self.kind, ":".join(map(str, self.world_sizes)), "+".join(map(str, self.kills)) or "-", *words)

    def problem(self) -> str:
        killed = f", killed after {'+'.join(map(str, self.kills))}" if self.kills else ""
        lines, texts = [f"{self.kind}, world size {':'.join(map(str, self.world_sizes))}{killed}:"], [self.error or ""]
        rest = (self.detail or "").splitlines()[-_MAX_DETAIL_LINES:]
        if first := self.differences.first:
            counts = ", ".join(f"{count:,} {word}" for word, count in self.counts.items() if count)
            expected = f", expected in batch {first.expected_batch}"
            if first.kind in ("missing", "unknown"):
                expected = f"{' of' if first.kind == 'missing' else ', not in'} the uninterrupted reading"
            texts = [f"of {self.differences.num_samples:,} samples, {counts}", self.remark or ""]
            texts.append(f"first {first.kind}: batch {first.batch}, rank {first.rank}{expected}")
            rest = [first.sample[: _WIDTH - 4]]
        lines += [line for text in texts for line in textwrap.wrap(text, _WIDTH - 4, break_long_words=False)]
        return "\n    ".join([*lines, *rest])


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeReport:
    """The results of all cases. Prints as a table followed by the failures."""

    name: str  # name of the factory or program
    settings: ResumeSettings  # the cases that were tried
    cases: tuple[ResumeCase, ...]  # results in the order of execution
    left_out: tuple[str, ...] = ()  # columns without a row per sample, which were not compared

    @property
    def ok(self) -> bool:
        """Returns whether all cases passed."""
        return all(case.ok for case in self.cases)

    def as_json(self) -> dict[str, Any]:
        tried = {name: getattr(self.settings, name) for name in ("seed", "num_batches", "order", "epochs")}
        cases = [case.as_json() for case in self.cases]
        return {"name": self.name, "ok": self.ok, **tried, "left_out": self.left_out, "cases": cases}

    def __str__(self) -> str:
        failed = [case for case in self.cases if not case.ok]
        head = f"{len(self.cases)} cases, {len(failed)} failed; {self.settings.num_batches} batches, "
        head += f"order {self.settings.order}, seed {self.settings.seed}"
        lines = [self.name, head, "", _row("case", "ranks", "killed", "repeated", "missing", "unknown", "reordered")]
        lines += [case.row() for case in self.cases]
        distinct: dict[tuple[object, ...], ResumeCase] = {}  # one case per cause, which is its text without numbers
        for case in failed:
            distinct.setdefault((case.world_sizes[:2], re.sub(r"\d+", "", case.error or case.remark or "")), case)
        shown = [*distinct.values()][:_MAX_PROBLEMS]
        for case in shown:
            lines += ["", case.problem()]
        if len(failed) > len(shown):
            lines += ["", f"{len(failed) - len(shown)} more failed, most of them in the same way"]
        if self.left_out:
            lines += ["", textwrap.fill(f"not compared, no row per sample: {', '.join(self.left_out)}", _WIDTH)]
        return "\n".join(lines)


def _row(kind: str, ranks: str, killed: str, *counts: str) -> str:
    return f"{kind:<15}{ranks:>8}{killed:>9}" + "".join(f"{count:>12}" for count in counts)


def _world_sizes(text: str) -> tuple[tuple[int, int], ...]:
    """Parses `1,2:4` to ((1, 1), (2, 4))."""
    pairs = (item.strip().partition(":") for item in text.split(","))
    return tuple((count(before), count(after if colon else before)) for before, colon, after in pairs)


_CASES = {
    "num_batches": Written(names=("--batches",), metavar="N"),
    "world_sizes": Written(metavar="LIST", parse=_world_sizes),
    "order": Written(choices=ORDERS),
}
_COMPARISON = "comparison"


@dataclass(frozen=True, kw_only=True)
class Options(JsonOption):
    """Kill and resume a loader at many points and with different numbers of ranks, and compare the content of all its
    samples with an uninterrupted reading. Exits with 1 if samples are repeated, missing or out of order.

    LOADER names a function that returns the loader of a rank, any iterable of batches: loaders.py:make_loader or
    package.module:make_loader. Its parameters are any of rank, world_size, state (of this rank; None at the start),
    states (of all ranks), consumed (number of samples, all ranks) and num_batches (of this rank). LOADER may also be a
    training program: it is started with RANK, WORLD_SIZE and TOKENLOOM_RESUME_FOLDER (the folder for its checkpoints),
    and must call tokenloom_check.record_batch(batch) with every batch and record_checkpoint() after every checkpoint.

    Attributes:
        loader: FILE.py:FUNCTION, MODULE:FUNCTION or a program.
        arguments: arguments of the program, such as --arguments="--lr 1".
        settings: the cases to try.
        samples: FILE.py:FUNCTION that returns the samples of a batch; auto (default) takes the rows of its columns, or
            the items of a list.
        state_of: function that takes a loader and its number of batches and returns the state (default:
            loader.state_dict()).
        timeout: maximum seconds between two batches of a rank.
        json: print one JSON object: name, ok, seed, num_batches, order, epochs, left_out, and cases, a list of objects.
    """

    loader: Annotated[str, Written(metavar="LOADER", is_positional=True)]
    arguments: Annotated[Sequence[str], Written(metavar="TEXT", parse=shlex.split)] = ()
    settings: Annotated[ResumeSettings, Written(group="cases", fields=_CASES)] = field(default_factory=ResumeSettings)
    samples: Annotated[str, Written(metavar="FUNCTION", group=_COMPARISON)] = "auto"
    state_of: Annotated[str | None, Written(metavar="FUNCTION", group=_COMPARISON)] = None
    timeout: Annotated[float, Written(metavar="S")] = 60.0

    def __post_init__(self) -> None:
        is_factory = is_function_name(self.loader)
        if not is_factory and not os.path.isfile(self.loader):
            refuse_usage(f"no file {self.loader}: LOADER is FILE.py:FUNCTION, MODULE:FUNCTION or a program")
        if is_factory and self.arguments:
            refuse_usage("--arguments is for programs only")
        if not is_factory and (self.state_of or self.samples != "auto" or self.settings.epochs != 1):
            refuse_usage("--state-of, --samples and --epochs are for factories only")


def run(options: Options) -> Answer:
    settings = options.settings
    if settings.seed is None:
        settings = replace(settings, seed=secrets.randbelow(2**32))
        say(f"seed {settings.seed}")
    runner: Runner
    if is_function_name(options.loader):
        runner = FactoryProcesses(options.loader, **arguments_of(options, FactoryProcesses))
    else:
        command = [sys.executable] if options.loader.endswith(".py") else []
        runner = Program([*command, os.path.abspath(options.loader), *options.arguments], timeout=options.timeout)
    report = verify_resume(runner, options.loader, settings)
    return Answer(report.as_json(), str(report), status=0 if report.ok else 1)
