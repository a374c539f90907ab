import pytest
from tests.inputs.corpora import found_in, write_arrow

from tokenloom.errors import ConfigError, InputError
from tokenloom.inputs.find import find_inputs


@pytest.fixture(scope="module")
def datasets():
    library = pytest.importorskip("datasets")
    library.disable_progress_bars()
    return library


def save(datasets, folder, num_rows=6, **options):
    datasets.Dataset.from_dict({"text": [f"t{number}" for number in range(num_rows)]}).save_to_disk(folder, **options)


def test_a_saved_dataset_is_its_files_in_its_order(datasets, tmp_path):
    save(datasets, tmp_path / "x" / "hf", num_shards=3)
    state = tmp_path / "x" / "hf" / "state.json"
    names = [f"data-0000{number}-of-00003.arrow" for number in range(3)]
    write_arrow(tmp_path / "x" / "hf" / "cache-1.arrow", [{"text": "left by a map"}])
    write_arrow(tmp_path / "x" / "a.arrow", [{"text": "another"}])
    for folder, others in (("x/hf", []), ("x", ["x/a.arrow"])):
        found = found_in(tmp_path, find_inputs([str(tmp_path / folder)]))
        assert found[0] == others + [f"x/hf/{name}" for name in names]
        assert found[1] == ["x/hf/cache-1.arrow", "x/hf/dataset_info.json", "x/hf/state.json"]
    state.write_text(
        state.read_text().replace("00000-of", "X").replace("00002-of", "00000-of").replace("X", "00002-of")
    )
    assert found_in(tmp_path, find_inputs([str(tmp_path / "x" / "hf")]))[0] == [f"x/hf/{name}" for name in names[::-1]]
    (tmp_path / "x" / "hf" / names[1]).unlink()
    with pytest.raises(InputError, match=rf"the saved dataset `.*/hf` lacks 1 of its 3 files, such as '{names[1]}'"):
        find_inputs([str(tmp_path / "x" / "hf")])


def test_splits_are_named_one_by_one(datasets, tmp_path):
    part = datasets.Dataset.from_dict({"text": ["a"]})
    datasets.DatasetDict({"train": part, "test": part}).save_to_disk(tmp_path / "hf")
    with pytest.raises(ConfigError, match=r"saved dataset `.*/hf` has several splits: train, test") as caught:
        find_inputs([str(tmp_path / "hf")])
    assert caught.value.hint == f"pass the folder of one split: `{tmp_path}/hf/train`, `{tmp_path}/hf/test`"
    found = find_inputs([str(tmp_path / "hf" / "train"), str(tmp_path / "hf" / "test")])
    assert [file.format for file in found.files] == ["arrow", "arrow"]


def test_rows_that_are_chosen_by_indices_are_refused(datasets, tmp_path):
    save(datasets, tmp_path)
    state = tmp_path / "state.json"
    indices = '"_indices_data_files": [{"filename": "indices.arrow"}], "_split"'
    state.write_text(state.read_text().replace('"_split"', indices))
    with pytest.raises(InputError, match=r"the saved dataset `.*` has an indices mapping") as caught:
        find_inputs([str(tmp_path)])
    assert "flatten_indices" in caught.value.hint
    state.write_text("{")
    with pytest.raises(InputError, match=r"`.*state\.json` is not a JSON object"):
        find_inputs([str(tmp_path)])
