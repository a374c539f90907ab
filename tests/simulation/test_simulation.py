"""A range of seeds of each scenario, and planted bugs that the simulation must find."""

import pytest

from tests.simulation.runner import SCENARIOS, run_seed, run_seeds
from tests.simulation.scheduler import FailedError, World
from tokenloom.distributed import membership
from tokenloom.order import cache
from tokenloom.preprocess import folder
from tokenloom.storage import atomic, publishing

NUM_SEEDS = {"publish": 100, "cache": 150, "job": 60, "ranks": 40}  # about a second each


def check_seeds(scenario, first, count):
    tally = run_seeds(scenario, range(first, first + count), most_failures=5)
    print(f"{scenario}: {tally}")
    command = f"python -m tests.simulation --scenario {scenario} --seed"
    stories = [f"{command} {seed}  # {problem}" for seed, problem in tally.failures.items()]
    assert not stories, "\n".join(stories)
    assert tally.num_runs == count
    assert tally.num_steps >= tally.num_runs


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_guarantees_hold_for_a_range_of_seeds(scenario, seed):
    check_seeds(scenario, seed, NUM_SEEDS[scenario])


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_guarantees_hold_for_many_seeds(scenario, seed):
    check_seeds(scenario, seed, 20 * NUM_SEEDS[scenario])


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_seed_reproduces_a_run(scenario, seed):
    (first, one), (second, other) = (run_seed(scenario, seed, tells=True) for _ in range(2))
    assert first.trace == second.trace
    assert first.trace
    assert one == other


def before_the_end(monkeypatch, work):
    """Does something with each key of a journal before it is finished."""
    real = publishing._finish

    def finish(journal, **options):
        for key in journal.keys:
            work(journal, key)
        real(journal, **options)

    monkeypatch.setattr(publishing, "_finish", finish)


def index_first(monkeypatch):
    def replace(journal, key):
        if publishing.os.path.lexists(journal.new[key]):
            publishing.os.replace(journal.new[key], key)

    before_the_end(monkeypatch, replace)


def journal_goes_first(monkeypatch):
    before_the_end(monkeypatch, lambda journal, key: publishing.remove_file(publishing.journal_path(key)))


def no_sync_of_files(monkeypatch):
    def sync(self):
        with atomic.storage_errors("write", self.path):
            self.stream.flush()

    monkeypatch.setattr(atomic.PendingFile, "sync", sync)


def identity_is_not_checked(monkeypatch):
    real = cache.IndexCache.load
    monkeypatch.setattr(cache.IndexCache, "load", lambda self, specs, check, identity=None: real(self, specs, check))


def description_first(monkeypatch):
    real = cache.IndexCacheWriter.__enter__

    def enter(self):
        entered = real(self)
        self._cache.publish(cache.DESCRIPTION, b"")
        return entered

    monkeypatch.setattr(cache.IndexCacheWriter, "__enter__", enter)
    monkeypatch.setattr(cache.IndexCache, "_record", lambda self: None)


def folder_is_emptied_whatever_is_in_it(monkeypatch):
    def remove_all(path):
        with atomic.suppress(OSError):
            for name in folder.os.listdir(path):
                folder.os.unlink(folder.os.path.join(path, name))
            folder.os.rmdir(path)

    monkeypatch.setattr(folder, "remove_own", remove_all)


def the_last_outcome_counts(monkeypatch):
    def propose(self, outcome):
        self.store.set(self._key("outcome", self._round), text := membership.json.dumps(outcome))
        self._take(text)

    monkeypatch.setattr(membership.Membership, "_propose", propose)


def any_session_counts(monkeypatch):
    real = membership.Membership._enter

    def enter(self):
        if self._session is None and (text := self._read("session")) is not None:
            self._session = membership.json.loads(text)["name"]
        return real(self)

    monkeypatch.setattr(membership.Membership, "_enter", enter)


def patched(name, *changes):
    def plant(monkeypatch):
        for change in changes:
            monkeypatch.setattr(*change)

    plant.__name__ = name
    return plant


JUDGE_SILENCE = (membership.Membership, "_judge_silence", lambda self: None)
JUDGE_DEATHS = (membership.Membership, "_judge_deaths", lambda self: False)

PLANTED = [
    ("publish", index_first, 2),
    ("publish", journal_goes_first, 333),
    ("publish", patched("no_lock", (publishing, "_acquire", lambda path, key: None)), 4),
    ("publish", no_sync_of_files, 5),
    ("publish", patched("no_sync_between_folders", (publishing, "other_folders", lambda key, paths: [])), 360),
    ("publish", patched("old_files_stay", (publishing, "_replaced", lambda group, *, replace: [])), 0),
    ("cache", identity_is_not_checked, 0),
    ("cache", description_first, 0),
    ("cache", patched("unsynced_files_are_not_compared", (cache, "array_checksum", lambda array: "")), 26),
    ("cache", patched("large_files_unsynced", (cache.IndexCacheWriter, "_skips_fsync", lambda *_: True)), 2475),
    ("job", folder_is_emptied_whatever_is_in_it, 16),
    ("job", patched("lock_of_a_removed_folder_counts", (folder, "_is_at", lambda descriptor, path: True)), 421),
    ("ranks", patched("silence_is_not_judged", JUDGE_SILENCE), 0),
    ("ranks", patched("nothing_is_judged", JUDGE_SILENCE, JUDGE_DEATHS), 0),
    ("ranks", the_last_outcome_counts, 3961),
    ("ranks", any_session_counts, 7),
]
"""(scenario, function that plants the bug, a seed that finds it)."""

_MOST_SEEDS = 20_000  # tried if that seed does not find the bug any more


@pytest.mark.parametrize(("scenario", "plant", "known"), PLANTED, ids=lambda value: getattr(value, "__name__", value))
def test_planted_bugs_are_found(scenario, plant, known, monkeypatch):
    plant(monkeypatch)
    tally = run_seeds(scenario, [known, *range(_MOST_SEEDS)], most_failures=1)
    [failure] = tally.failures.values()
    assert "TypeError" not in failure, "the planted bug does not fit the code"


def test_processes_that_wait_for_each_other_are_found():
    world = World("any")
    with pytest.raises(FailedError, match="deadlock: these never end: one"):
        world.run({"one": lambda: world.wait(lambda: False)})
