import threading
from collections.abc import Callable, Iterator

import pytest

from tokenloom import (
    AccessDeniedError,
    MissingObjectError,
    ObjectStorageSettings,
    StorageError,
    UnavailableError,
    storage_statistics,
)
from tokenloom.storage import objects as storages
from tokenloom.storage.addresses import STORES, ObjectAddress, ObjectVersion
from tokenloom.storage.objects import RemoteFile, close_storages
from tokenloom.storage.statistics import forget_statistics

VERSION = ObjectVersion(num_bytes=4, etag=None)


class Flaky:
    errors: list[StorageError]
    is_away: Callable[[], bool]

    def __init__(self, address: ObjectAddress, settings: ObjectStorageSettings) -> None:
        pass

    def version(self, address: ObjectAddress) -> ObjectVersion:
        self.read(address, 0, 4, VERSION)
        return VERSION

    def read(self, address: ObjectAddress, start: int, stop: int, version: ObjectVersion) -> bytes:
        if Flaky.errors:
            raise Flaky.errors.pop(0)
        if Flaky.is_away():
            message = "no answer"
            raise UnavailableError(message)
        return b"done"


@pytest.fixture(autouse=True)
def flaky_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(STORES, "flaky", f"{__name__}:Flaky")
    Flaky.errors, Flaky.is_away = [], lambda: False
    forget_statistics()
    yield
    close_storages()


def read(**settings: float | None) -> bytes:
    return RemoteFile("flaky://store/key", ObjectStorageSettings(**settings), VERSION).read(0, 4).tobytes()


def num_retries() -> int:
    return storage_statistics()["flaky://store/key"].retries


def test_what_may_pass_is_tried_again() -> None:
    Flaky.errors = [UnavailableError("a"), AccessDeniedError("b"), UnavailableError("c")]
    assert read(deadline_seconds=5) == b"done"
    assert num_retries() == 3


def test_what_will_not_pass_is_not_tried_again() -> None:
    Flaky.errors = [MissingObjectError("a"), AccessDeniedError("b")]
    with pytest.raises(MissingObjectError, match=r"^a$"):
        read()
    with pytest.raises(AccessDeniedError, match=r"^b$"):
        RemoteFile("flaky://store/key")
    assert num_retries() == 0


class Clock(threading.Event):
    """Tells how long was waited for it, and nothing else takes time."""

    seconds = 100.0

    def monotonic(self) -> float:
        return self.seconds

    perf_counter = monotonic

    def wait(self, timeout: float | None = None) -> bool:
        self.seconds += timeout or 0.0
        return False


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(storages, "time", made)
    monkeypatch.setattr(storages, "ENDING", made)
    return made


def test_the_deadline_ends_it_and_the_error_tells_how_often(clock: Clock) -> None:
    Flaky.is_away = lambda: True
    with pytest.raises(UnavailableError) as info:
        read(deadline_seconds=0.4)
    assert 100.0 < clock.seconds <= 100.4
    assert info.value.message == (
        f"no answer; given up after {num_retries() + 1} attempts in {clock.seconds - 100:.1f} s"
    )
    assert info.value.hint == "check the endpoint and the network"


def test_the_default_deadline_outlives_an_outage_of_twenty_seconds(clock: Clock) -> None:
    back = clock.seconds + 20
    Flaky.is_away = lambda: clock.seconds < back
    assert read() == b"done"
    assert clock.seconds <= back + 5  # the longest pause


@pytest.mark.parametrize("retries", [0, 3])
def test_retries_are_counted_where_they_are_limited(retries: int) -> None:
    Flaky.is_away = lambda: True
    with pytest.raises(UnavailableError, match=rf"no answer; given up after {retries + 1} attempts"):
        read(retries=retries)
    assert num_retries() == retries
