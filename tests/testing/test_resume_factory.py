"""Factories: how they are named, what they may take, and what one rank does with one."""

from __future__ import annotations

import pickle

import pytest
from tests.testing import loaders

from tokenloom.errors import ConfigError, ConformanceError
from tokenloom.testing.resume_factory import (
    Factory,
    RankJob,
    error_words,
    is_function_name,
    load_function,
    name_function,
    read_rank,
)


def events(make, *, samples="auto", state_of=None, **job):
    return [*read_rank(Factory(make, state_of=state_of, samples=samples), RankJob(rank=0, world_size=1, **job))]


def kinds(make, **job):
    return "".join(kind[0] for kind, _ in events(make, **job))


@pytest.mark.parametrize(
    ("text", "is_name"),
    [
        ("loaders.py:make", True),
        ("/a/b.py:make", True),
        ("package.module:make", True),
        ("package.module:Class.make", True),
        ("train.py", False),
        ("train.py:", False),
        (":make", False),
        ("C:\\train.py", False),
        ("s3://bucket/train.py", False),
    ],
)
def test_names_of_functions_have_a_colon(text, is_name):
    assert is_function_name(text) == is_name


def test_a_function_is_found_by_file_and_by_module():
    assert load_function("tests.testing.loaders:counting") is loaders.counting
    name = name_function(loaders.counting)
    assert name == f"{loaders.__file__}:counting"
    assert load_function(name).__code__.co_filename == loaders.__file__
    assert load_function(f"{loaders.__file__}:Counting.state_dict").__name__ == "state_dict"


def test_two_files_of_one_name_are_two_modules(tmp_path):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "same_name.py").write_text(f"def make():\n    return {folder!r}\n")
    assert [load_function(f"{tmp_path}/{folder}/same_name.py:make")() for folder in ("one", "two")] == ["one", "two"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("train.py", "expected a function such as loaders.py:make_loader or package.module:make_loader, found"),
        ("absent.py:make", "no file `absent.py`"),
        ("absent_module:make", "no module `absent_module`\nhint: run the command in its folder, or set PYTHONPATH"),
        ("tests.testing.loaders:absent", "expected a function `absent` in `tests.testing.loaders`, found none\nhint:"),
        ("tests.testing.loaders:__name__", "expected a function as `tests.testing.loaders:__name__`, found str"),
    ],
)  # fmt: skip
def test_what_is_not_found_is_told(name, message):
    with pytest.raises(ConfigError) as caught:
        load_function(name)
    assert str(caught.value).startswith(message)


def test_errors_of_a_module_come_through(tmp_path):
    (tmp_path / "needs_absent.py").write_text("import absent_module\n")
    with pytest.raises(ModuleNotFoundError, match="absent_module"):
        load_function(f"{tmp_path}/needs_absent.py:make")


def test_functions_that_other_processes_cannot_find_are_refused():
    with pytest.raises(ConfigError, match="expected a function at the top of a file, which other processes find"):
        name_function(lambda state: [])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (loaders.needs_more, "expected a factory that needs some of rank, world_size, state, states, consumed, num_"),
        (loaders.cannot_go_on, r"expected a factory that takes `state` or `consumed`, to go on from, found `cannot"),
    ],
)  # fmt: skip
def test_arguments_of_a_factory_are_checked(make, message):
    with pytest.raises(ConfigError, match=message):
        Factory(make)


def test_a_factory_is_given_what_it_takes():
    given = []

    def all_of_them(**arguments):
        given.append(arguments)
        return [[1]]

    def some(num_batches, *, states, path="x"):
        given.append((num_batches, states, path))
        return [[1]]

    states = tuple(pickle.dumps(state) for state in ("first", "second"))
    job = RankJob(rank=3, world_size=4, states=states, consumed=16, num_batches=2)
    for make in (all_of_them, some):
        list(read_rank(Factory(make), job))
    assert given[0] == {
        "rank": 3, "world_size": 4, "state": "second", "states": ["first", "second"], "consumed": 16, "num_batches": 2
    }  # fmt: skip
    assert given[1] == (2, ["first", "second"], "x")


# --- one rank -------------------------------------------------------------------------------------------------------


def test_a_rank_reads_to_the_end_or_to_its_limit():
    assert kinds(loaders.short) == "b" * 10 + "ee"
    assert kinds(loaders.short, epochs=2) == ("b" * 10 + "e") * 2 + "e"
    assert kinds(loaders.short, stop_after=3) == "bbbs"
    assert kinds(loaders.short, stop_after=0) == "s"
    assert kinds(loaders.short, num_samples=5) == "bbs"
    assert kinds(loaders.gives_nothing, epochs=5) == "eee"
    assert kinds(loaders.short, num_batches=10, states=(pickle.dumps({"position": 40}),)) == "e" + "b" * 10 + "ee"


@pytest.mark.parametrize(
    ("take_state", "kind", "position"),
    [("now", "state", 12), ("kept", "state", 12), (None, "stopped", None)],
)
def test_a_state_is_that_after_the_last_batch(take_state, kind, position):
    *_, (last, state) = events(loaders.counting, stop_after=3, take_state=take_state)
    assert last == kind
    assert position is None or pickle.loads(state) == {"position": position}


def test_a_state_that_is_kept_is_looked_at_later():
    *batches, (_, state) = events(loaders.shares_its_state, stop_after=3, take_state="kept")
    assert len(batches) == 3
    assert pickle.loads(state) == {"position": 16}
    assert pickle.loads(events(loaders.shares_its_state, stop_after=3, take_state="now")[-1][1]) == {"position": 12}


def test_a_state_may_be_taken_between_epochs():
    found = events(loaders.short, epochs=2, stop_after=10, take_state="after epoch")
    assert [kind for kind, _ in found[-2:]] == ["epoch", "state"]


def test_where_states_come_from():
    def own(loader, num_batches):
        return [type(loader).__name__, num_batches]

    *_, (_, state) = events(loaders.counting, state_of=own, stop_after=2, take_state="now", num_batches=5)
    assert pickle.loads(state) == ["Counting", 7]
    assert pickle.loads(events(loaders.by_count, stop_after=1, take_state="now")[-1][1]) is None
    with pytest.raises(ConfigError, match="expected a loader with `state_dict`, as the factory goes on from `state`"):
        events(loaders.has_no_state, stop_after=1, take_state="now")
    with pytest.raises(ConformanceError, match="expected a state that can be saved, found one that cannot be pickled"):
        events(loaders.counting, state_of=lambda *_: lambda: None, stop_after=1, take_state="now")


def test_samples_are_cut_as_wanted():
    def two_columns(state):
        return [{"a": [1, 2], "step": 1}]

    assert [kind for kind, _ in events(two_columns)] == ["left out", "batch", "epoch", "end"]
    assert len(events(two_columns)[1][1]) == 2
    assert len(events(two_columns, samples="one")[0][1]) == 1
    assert len(events(two_columns, samples=lambda batch: batch["a"] * 2)[0][1]) == 4


def test_errors_are_words_with_a_place():
    with pytest.raises(OSError, match="no such bucket") as caught:
        loaders.always_raises(0, 1, None)
    assert error_words(caught.value).startswith("OSError: no such bucket, in loaders.py:")
