"""Whether a loader that is killed and resumed gives every sample once, in the order of an unbroken reading."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from tokenloom.errors import ConfigError, ConformanceError
from tokenloom.numbers import checked_integer
from tokenloom_check.fingerprints import CutSamples
from tokenloom_check.resume_factory import Factory, name_function
from tokenloom_check.resume_report import ResumeCase, ResumeReport
from tokenloom_check.resume_runners import InProcess, Point, Processes, RankFailedError, Reading, Runner
from tokenloom_check.resume_streams import (
    ORDERS,
    Differences,
    GlobalBatch,
    batches_like,
    compare,
    enough_batches,
    num_samples_of,
)

_NUM_RANDOM = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeSettings:
    """What is tried.

    Attributes:
        num_batches: global batches of the window, from the first.
        kill_at: batches after which loaders are killed; empty for the first and last of the window, the ends of epochs
            in it, and a few at random.
        world_sizes: ranks before and after each kill.
        epochs: how often a loader is iterated.
        order: what order must be kept: "strict", that of samples; "batch", that of global batches; "any", none.
        seed: of kill points.

    Raises:
        ConfigError: a number is out of range.
    """

    num_batches: int = 24
    kill_at: tuple[int, ...] = ()
    world_sizes: tuple[tuple[int, int], ...] = ((1, 1), (2, 2))
    epochs: int = 1
    order: str = "batch"
    seed: int = 0

    def __post_init__(self) -> None:
        checked_integer("num_batches", self.num_batches, at_least=1)
        checked_integer("epochs", self.epochs, at_least=1)
        for point in self.kill_at:
            if checked_integer("kill_at", point, at_least=0) >= self.num_batches:
                message = f"expected a kill within {self.num_batches} batches, found one after {point}"
                raise ConfigError(message)
        if not self.world_sizes:
            message = "expected one pair of world sizes at least, found none"
            raise ConfigError(message)
        for pair in self.world_sizes:
            for size in pair:
                checked_integer("world_sizes", size, at_least=1)
        if self.order not in ORDERS:
            message = f"expected {', '.join(ORDERS)} as the order to keep, found {self.order!r}"
            raise ConfigError(message)


def check_resume(
    factory: Callable[..., Any] | str,
    *,
    state_of: Callable[[Any, int], Any] | str | None = None,
    samples: CutSamples = "auto",
    num_batches: int = 24,
    kill_at: Sequence[int] = (),
    world_sizes: Sequence[tuple[int, int]] = ((1, 1), (2, 2)),
    epochs: int = 1,
    order: str = "batch",
    seed: int | None = None,
    timeout: float = 60.0,
    in_process: bool = False,
    fresh_processes: bool = False,
) -> ResumeReport:
    """Checks that loaders which are killed and resumed repeat no sample, leave out none, and keep their order.

    Any loader will do: an iterable of batches. For each case, ranks read up to a point, are killed, and others go on
    from there; what both gave is compared with an unbroken reading, sample by sample, by content. Processes are
    real, and killed by SIGKILL.

    Example:
        >>> class Loader:
        ...     def __init__(self, rank, world_size, consumed):
        ...         self.numbers = range(consumed + 2 * rank, 40, 2 * world_size)
        ...     def __iter__(self):
        ...         return ([number, number + 1] for number in self.numbers)
        >>> def make_loader(rank, world_size, consumed):
        ...     return Loader(rank, world_size, consumed)
        >>> report = check_resume(make_loader, world_sizes=[(1, 1), (2, 4)], num_batches=6, seed=1, in_process=True)
        >>> report.ok, len(report.cases)
        (True, 18)

    Args:
        factory: makes the loader of a rank; takes, by name, what it needs of `rank`, `world_size`, `state` (of this
            rank, None at the start), `states` (of all ranks), `consumed` (samples, of all ranks) and `num_batches`
            (of this rank). A function at the top of a file, or the name of one: `path/to/file.py:make_loader`,
            `package.module:make_loader`.
        state_of: gives the state from a loader and the batches that it has handed out; by default, `state_dict()`. The
            state goes through pickle.
        samples: how a batch is cut into samples: "rows", a row of each column; "list", its items; "one", it is one;
            "auto" looks; or a function from a batch to its samples. For processes, a function at the top of a file.
        num_batches: global batches of the window, from the first.
        kill_at: batches after which to kill; by default none, the last but one, the ends of epochs, some at random.
        world_sizes: numbers of ranks before and after each kill.
        epochs: how often a loader is iterated.
        order: "strict", samples stand where they stood, rank after rank; "batch", each in its global batch, or where
            sizes changed, in one that overlaps with it; "any".
        seed: of kill points; by default another one each time.
        timeout: seconds that a rank may take for a batch.
        in_process: whether all of it happens in this process: faster, and nothing is really killed.
        fresh_processes: whether each process imports the factory anew; else they are forks of one that has.

    Raises:
        ConformanceError: samples are repeated, missing, or in another order; or the loader fails or hangs.
        ConfigError: the factory needs other arguments, or is not found; a setting is out of range.
    """
    settings = ResumeSettings(
        num_batches=num_batches,
        kill_at=tuple(kill_at),
        world_sizes=tuple(world_sizes),
        epochs=epochs,
        order=order,
        seed=secrets.randbelow(2**32) if seed is None else seed,
    )
    runner: Runner
    if in_process and not isinstance(factory, str) and not isinstance(state_of, str):
        name = getattr(factory, "__name__", type(factory).__name__)
        runner = InProcess(Factory(factory, state_of=state_of, samples=samples))
    elif in_process:
        message = "expected functions, to check them in this process, found a name"
        raise ConfigError(message, hint="import it, or leave out `in_process`")
    else:
        name = factory if isinstance(factory, str) else name_function(factory)
        runner = Processes(
            name,
            state_of=name_function(state_of) if callable(state_of) else state_of,
            samples=name_function(samples) if callable(samples) else samples,
            timeout=timeout,
            fresh=fresh_processes,
        )
    report = verify_resume(runner, name, settings)
    if not report.ok:
        raise ConformanceError(str(report))
    return report


def verify_resume(runner: Runner, name: str, settings: ResumeSettings) -> ResumeReport:
    """Returns what became of each case; closes the runner.

    Args:
        runner: reads the loader.
        name: name of the loader, for people.
        settings: what is tried.

    Raises:
        ConformanceError: not even an unbroken reading works, or gives no samples.
        ConfigError: a kill point is beyond the end.
    """
    with closing(runner):
        cases: list[ResumeCase] = []
        left_out: set[str] = set()
        tried: dict[int, _Unbroken] = {}
        for before, after in settings.world_sizes:
            is_first = before not in tried
            if is_first:
                tried[before] = _Unbroken(runner, name, settings, before)
            unbroken = tried[before]
            left_out |= unbroken.found.left_out
            plans = [_Plan(kind="read again", kills=(), world_sizes=(before,))] if is_first else []
            plans += _plans(runner, settings, unbroken, after)
            plans += _further_plans(runner, settings, unbroken, after) if is_first else ()
            hung: set[tuple[int, ...]] = set()
            for plan in plans:
                cases.append(_tried(runner, settings, unbroken, plan, hung=hung, is_sound=_is_sound(cases, plan)))
        return ResumeReport(name=name, settings=settings, cases=tuple(cases), left_out=tuple(sorted(left_out)))


class _Unbroken:
    """The reading that all others must equal."""

    def __init__(self, runner: Runner, name: str, settings: ResumeSettings, world_size: int) -> None:
        self.world_size = world_size
        more = max(settings.num_batches, *(max(pair) for pair in settings.world_sizes))
        begin = Point(epochs=settings.epochs)
        reading = Reading(world_size=world_size, begin=begin, stop_after=settings.num_batches + more)
        try:
            self.found = runner.run(reading)
        except RankFailedError as error:
            message = f"an unbroken reading of {name} with world size {world_size} failed: {error.message}"
            raise ConformanceError(message, hint=error.detail) from error
        self.batches = self.found.batches[: settings.num_batches]
        self.after = self.found.batches[settings.num_batches :]
        if not num_samples_of(self.batches):
            message = f"expected samples of {name} with world size {world_size}, found none"
            hint = "let the program call `tokenloom_check.record_batch`" if runner.is_program else None
            raise ConformanceError(message, hint=hint)
        if runner.is_program and self.found.point is not None and not self.found.point.num_batches:
            message = f"expected checkpoints of {name}, found none in {len(self.found.batches)} batches"
            hint = "let it call `tokenloom_check.record_checkpoint` when one is safe, or read more batches"
            raise ConformanceError(message, hint=hint)
        if beyond := [point for point in settings.kill_at if point >= len(self.batches)]:
            message = f"expected a kill before the end, after {len(self.batches)} batches, found one after {beyond[0]}"
            raise ConfigError(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """A case to try: what is read before each kill, by how many ranks."""

    kind: str
    kills: tuple[int, ...]
    world_sizes: tuple[int, ...]
    take_state: str = "now"
    load_twice: bool = False


def _plans(runner: Runner, settings: ResumeSettings, unbroken: _Unbroken, after: int) -> Iterator[_Plan]:
    """Yields the cases of each pair of world sizes."""
    count = len(unbroken.batches)
    rng = random.Random(f"{settings.seed} {unbroken.world_size}:{after}")
    sizes = (unbroken.world_size, after)
    ends = [end for end in unbroken.found.epoch_ends if end < count]
    points = settings.kill_at
    earliest = 1 + unbroken.found.first_checkpoint
    if not points:
        inner = range(earliest, count - 1)
        chosen = rng.sample(inner, min(_NUM_RANDOM, len(inner)))
        first = {0, count - 1} if not runner.is_program else {count - 1}
        points = tuple(sorted({*first, *ends, *chosen}))
    for point in points:
        if point or not runner.is_program:
            settled = "settled" if point == points[len(points) // 2] else "now"
            yield _Plan(kind="resumed", kills=(point,), world_sizes=sizes, take_state=settled)
    if not runner.is_program:
        for end in ends:
            yield _Plan(kind="between epochs", kills=(end,), world_sizes=sizes, take_state="after epoch")
    if count > earliest + 1:
        first_kill = rng.randrange(earliest, max(count // 2, earliest + 1))
        second = rng.randrange(earliest, earliest + max(count // 4, 1))
        yield _Plan(kind="resumed twice", kills=(first_kill, second), world_sizes=(*sizes, unbroken.world_size))


def _further_plans(runner: Runner, settings: ResumeSettings, unbroken: _Unbroken, after: int) -> Iterator[_Plan]:
    """Yields the cases that are tried once for each world size before."""
    count = len(unbroken.batches)
    if not runner.is_program and count > 2:
        given = [point for point in settings.kill_at if 0 < point < count - 1]
        point = given[-1] if given else random.Random(settings.seed).randrange(1, count - 1)
        sizes = (unbroken.world_size, after)
        yield _Plan(kind="state kept", kills=(point,), world_sizes=sizes, take_state="kept")
        yield _Plan(kind="loaded twice", kills=(point,), world_sizes=sizes, load_twice=True)


def _is_sound(cases: Sequence[ResumeCase], plan: _Plan) -> bool:
    """Whether these ranks go on as they should when nothing special is done."""
    return all(case.ok for case in cases if case.kind == "resumed" and case.world_sizes == plan.world_sizes)


def _tried(
    runner: Runner,
    settings: ResumeSettings,
    unbroken: _Unbroken,
    plan: _Plan,
    *,
    hung: set[tuple[int, ...]],
    is_sound: bool,
) -> ResumeCase:
    """Returns what became of a case; what hangs with these ranks is not tried again, as that takes long."""
    batches: list[GlobalBatch] = []
    starts: list[int] = []
    needed = num_samples_of(unbroken.batches)
    case = ResumeCase(
        kind=plan.kind, kills=plan.kills, world_sizes=plan.world_sizes, differences=Differences(num_samples=needed)
    )
    if plan.world_sizes[:2] in hung:
        return replace(case, error="not tried, as these ranks hung before")
    point = Point(epochs=settings.epochs)
    try:
        for place, world_size in enumerate(plan.world_sizes):
            is_last = place == len(plan.kills)
            left = needed - num_samples_of(batches)
            if is_last and left <= 0:
                break
            reading = Reading(
                world_size=world_size,
                begin=point,
                stop_after=None if is_last else plan.kills[place],
                num_samples=left + unbroken.found.ended if is_last else None,
                take_state=None if is_last else plan.take_state,
                load_twice=plan.load_twice and is_last,
            )
            found = runner.run(reading)
            starts.append(len(batches))
            if found.point is None or is_last:
                batches += found.batches
                break
            batches += found.batches[: found.point.num_batches - point.num_batches]
            point = found.point
    except RankFailedError as error:
        if error.hung:
            hung.add(plan.world_sizes[:2])
        return replace(case, error=error.message, detail=error.detail)
    differences = compare(unbroken.batches, batches, after=unbroken.after, order=settings.order)
    if unbroken.found.ended and not unbroken.after and not differences.any:
        differences = compare(unbroken.batches, batches, order=settings.order, is_end=True)
    if not differences.any:
        return replace(case, differences=differences)
    return replace(case, differences=differences, remark=_remark(unbroken, batches, starts, plan, is_sound=is_sound))


def _remark(
    unbroken: _Unbroken, batches: Sequence[GlobalBatch], starts: Sequence[int], plan: _Plan, *, is_sound: bool
) -> str | None:
    """Returns what may be wrong, in words, as far as it can be told."""
    if plan.kind == "read again":
        return "two unbroken readings differ: the order depends on more than the arguments of the factory"
    if plan.kind == "state kept" and is_sound:
        return "the state changed while the loader read on: `state_dict` must return a copy"
    if plan.kind == "loaded twice" and is_sound:
        return "going on from a state changed it: `load_state_dict` must copy what it keeps"
    begun = starts[-1]
    if begun >= len(batches):
        return "it gave nothing after the resume"
    readings = [*unbroken.batches, *unbroken.after]
    expected = len(enough_batches(readings, num_samples_of(batches[:begun])))
    known = batches_like(batches[begun], readings)
    if expected in known:
        return None
    if not known and len(set(plan.world_sizes)) > 1:
        return "what comes next depends on the world size: a state, or a count, means another place on other ranks"
    if not known:
        return "the first batch after the resume is none of the unbroken reading: its shuffle is another one"
    at = min(known, key=lambda number: abs(number - expected))
    went_on = f"it went on at batch {at} instead of {expected}"
    if at == 0:
        return f"{went_on}, the first: the state, or the samples consumed, did not reach the loader"
    if at < expected:
        return f"{went_on}: the state is that of an earlier batch"
    return f"{went_on}: the state counts batches that were not handed out yet, such as those read ahead"
