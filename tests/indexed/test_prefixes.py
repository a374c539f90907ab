import pytest
from tests.indexed.pairs import write_pair

from tokenloom.errors import DatasetNotFoundError, StorageError
from tokenloom.indexed.prefixes import prefixes_in, sequence_counts


def test_prefixes_of_a_folder_are_sorted_by_name(tmp_path):
    for name in ("b", "a", "a-1", "a.b", "A"):
        write_pair(tmp_path / name, [])
    (tmp_path / ".hidden.bin").touch()
    (tmp_path / "notes.txt").touch()
    assert prefixes_in(str(tmp_path)) == [f"{tmp_path}/{name}" for name in ("A", "a", "a-1", "a.b", "b")]


@pytest.mark.parametrize(("kept", "missing"), [("bin", "idx"), ("idx", "bin")])
def test_half_a_pair_in_a_folder_is_named(tmp_path, kept, missing):
    (tmp_path / f"a.{kept}").touch()
    with pytest.raises(DatasetNotFoundError) as caught:
        prefixes_in(str(tmp_path))
    assert caught.value.message == f"`{tmp_path}`: the pair `a` is incomplete, `a.{missing}` is missing"


def test_a_folder_without_pairs_and_a_missing_folder_are_named(tmp_path):
    with pytest.raises(DatasetNotFoundError, match=r"`: contains no \.bin/\.idx pair"):
        prefixes_in(str(tmp_path))
    with pytest.raises(StorageError, match=r"cannot list `.*absent`: No such file or directory"):
        prefixes_in(f"{tmp_path}/absent")


def test_counts_are_sequences_and_boundaries(tmp_path):
    one = write_pair(tmp_path / "one", [[[1, 2], [3]], [], [[4]]])
    none = write_pair(tmp_path / "none", [])
    assert sequence_counts([one, f"{none}.idx"]) == {one: [3, 4], none: [0, 1]}
