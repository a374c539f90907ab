import gzip
import os

import pytest
from tests.inputs.corpora import LINE, found_in, write, write_arrow

from tokenloom.errors import ConfigError, InputError, MissingObjectError, StorageError
from tokenloom.inputs import InputFile
from tokenloom.inputs.find import find_inputs


def test_files_come_as_they_are_named(tmp_path):
    write(tmp_path, "b.jsonl", "a.jsonl")
    names = [str(tmp_path / "b.jsonl"), str(tmp_path / "a.jsonl")]
    found = find_inputs(names)
    assert found_in(tmp_path, found) == (["b.jsonl", "a.jsonl"], [])
    version = str((tmp_path / "b.jsonl").stat().st_mtime_ns)
    expected = {"path": names[0], "format": "jsonl", "compression": "none", "num_bytes": len(LINE), "version": version}
    assert found.files[0] == InputFile(**expected)


def test_folders_come_sorted_by_path_with_all_folders_in_them_and_list_what_they_leave_out(tmp_path):
    write(tmp_path, "c/b.jsonl", "c/a/z.ndjson", "c/a.jsonl.gz", "c/10.jsonl", "c/9.jsonl")
    write(tmp_path, "c/README.md", "c/info.json", "c/_SUCCESS", "c/.hidden.jsonl", "c/.git/x.jsonl", "c/notes.txt")
    found = find_inputs([str(tmp_path / "c")])
    assert found_in(tmp_path, found) == (
        ["c/10.jsonl", "c/9.jsonl", "c/a.jsonl.gz", "c/a/z.ndjson", "c/b.jsonl"],
        ["c/.git", "c/.hidden.jsonl", "c/README.md", "c/_SUCCESS", "c/info.json", "c/notes.txt"],
    )
    assert found == find_inputs([str(tmp_path / "c") + "/"])


def test_globs_are_sorted_and_may_go_through_folders(tmp_path):
    write(tmp_path, "b.jsonl", "a.jsonl", "x/c.jsonl", "x/y/d.jsonl", "note.txt", "[odd].jsonl")
    assert found_in(tmp_path, find_inputs([f"{tmp_path}/?.jsonl"]))[0] == ["a.jsonl", "b.jsonl"]
    deep = found_in(tmp_path, find_inputs([f"{tmp_path}/x/**/*.jsonl"]))[0]
    assert deep == ["x/c.jsonl", "x/y/d.jsonl"]
    assert found_in(tmp_path, find_inputs([f"{tmp_path}/[odd].jsonl"]))[0] == ["[odd].jsonl"]
    assert found_in(tmp_path, find_inputs([f"{tmp_path}/x*"]))[0] == deep
    with pytest.raises(InputError, match=r"no file matches `.*/z\*`"):
        find_inputs([f"{tmp_path}/z*"])


def test_a_list_names_files_folders_and_globs(tmp_path, monkeypatch):
    write(tmp_path, "b.jsonl", "a.jsonl", "x/c.jsonl", "x/d.jsonl", "@odd.jsonl")
    (tmp_path / "list.txt").write_text("b.jsonl\n\nx\r\na*\n@odd.jsonl\n")
    monkeypatch.chdir(tmp_path)
    names = [file.path for file in find_inputs(["@list.txt"]).files]
    assert names == ["b.jsonl", "x/c.jsonl", "x/d.jsonl", "a.jsonl", "@odd.jsonl"]
    with pytest.raises(StorageError, match="cannot open `nowhere`: No such file"):
        find_inputs(["@nowhere"])
    (tmp_path / "list.txt").write_bytes(b"caf\xe9\n")
    with pytest.raises(InputError, match=r"the list `list\.txt` is not UTF-8"):
        find_inputs(["@list.txt"])


def test_nothing_found_is_an_error_that_lists_what_there_is(tmp_path):
    with pytest.raises(InputError, match="no input files in an empty list"):
        find_inputs([])
    with pytest.raises(InputError, match=r"no input files in `.*`; no other files found"):
        find_inputs([str(tmp_path)])
    write(tmp_path, "a.txt", "b.md", "c.jsonl")
    with pytest.raises(InputError, match=r"the format parquet in .*; ignored 3 other files: `.*a\.txt`, `.*b\.md`, "):
        find_inputs([str(tmp_path)], input_format="parquet")


def test_a_file_may_be_named_once_whatever_its_names(tmp_path):
    write(tmp_path, "a.jsonl", "x/b.jsonl")
    (tmp_path / "link.jsonl").symlink_to("a.jsonl")
    path = str(tmp_path / "a.jsonl")
    with pytest.raises(ConfigError, match=rf"`{path}` is named twice\n"):
        find_inputs([path, str(tmp_path / "x"), path])
    with pytest.raises(ConfigError, match=rf"`.*/link\.jsonl` is named twice, also as `{path}`"):
        find_inputs([path, str(tmp_path / "link.jsonl")])
    with pytest.raises(ConfigError, match="`-` is named twice"):
        find_inputs(["-", "-"])


def test_links_of_a_folder_to_what_is_read_anyhow_are_skipped(tmp_path, caplog):
    write(tmp_path, "c/b.jsonl", "c/d/e.jsonl", "far/f.jsonl")
    for name, target in (("a", "b.jsonl"), ("d/b2", "../b.jsonl"), ("f1", "../far/f.jsonl"), ("f2", "../far/f.jsonl")):
        (tmp_path / "c" / f"{name}.jsonl").symlink_to(target)
    (tmp_path / "c" / "e").symlink_to("d")
    expected = (["c/b.jsonl", "c/d/e.jsonl", "c/f1.jsonl"], ["c/a.jsonl", "c/d/b2.jsonl", "c/e/b2.jsonl"])
    found, ignored = found_in(tmp_path, find_inputs([str(tmp_path / "c")]))
    assert (found, ignored) == (expected[0], sorted([*expected[1], "c/e/e.jsonl", "c/f2.jsonl"]))
    assert caplog.messages == [f"skipped 5 links to other input files, such as `{tmp_path}/c/a.jsonl`"]


def test_a_folder_of_text_files_has_any_name_that_tells_no_other_format(tmp_path):
    write(tmp_path, "a.txt", "b.md", "LICENSE", "x/c.py", "d.rst.gz", "e.jsonl", "f.parquet", ".g", data=b"text")
    names = ["LICENSE", "a.txt", "b.md", "d.rst.gz", "x/c.py"]
    assert found_in(tmp_path, find_inputs([str(tmp_path)], input_format="text-files"))[0] == names
    assert found_in(tmp_path, find_inputs([str(tmp_path)], input_format="text-lines"))[0] == ["a.txt"]
    assert find_inputs([str(tmp_path / "b.md")], input_format="text-files").files[0].format == "text-files"
    with pytest.raises(ConfigError, match="has files of several formats: jsonl, parquet"):
        find_inputs([str(tmp_path)])


def test_links_are_followed_and_lead_neither_nowhere_nor_in_circles(tmp_path):
    write(tmp_path, "real/a.jsonl")
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "folder").symlink_to("../real")
    (tmp_path / "c" / "nothing.md").symlink_to("nowhere")
    assert found_in(tmp_path, find_inputs([str(tmp_path / "c")])) == (["c/folder/a.jsonl"], ["c/nothing.md"])
    (tmp_path / "c" / "gone.jsonl").symlink_to("nowhere")
    with pytest.raises(StorageError, match=r"cannot open `.*gone\.jsonl`: No such file"):
        find_inputs([str(tmp_path / "c")])
    (tmp_path / "real" / "up").symlink_to("..")
    with pytest.raises(InputError, match=r"has more than 32 levels of folders\n.*links that form a cycle"):
        find_inputs([str(tmp_path / "real")])


def test_standard_input_and_pipes_are_lines_unless_told(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    files = find_inputs(["-", str(tmp_path / "pipe")]).files
    assert [(file.format, file.is_stream, file.num_bytes) for file in files] == [("jsonl", True, 0)] * 2
    assert find_inputs(["-"], input_format="arrow").files[0].format == "arrow"
    with pytest.raises(ConfigError, match="`-` is a pipe, and Parquet cannot be read from a pipe"):
        find_inputs(["-"], input_format="parquet")


def test_objects_are_found_like_files(bucket, tmp_path):
    for key in ("c/b.jsonl", "c/a/z.jsonl", "c/a.jsonl", "c/README.md", "c/.x/y.jsonl", "cc/a.jsonl", "top.jsonl"):
        bucket.put(key, LINE)
    everything = find_inputs([bucket.url("c/")])
    urls = [bucket.url(key) for key in ("c/a.jsonl", "c/a/z.jsonl", "c/b.jsonl")]
    assert [file.path for file in everything.files] == urls
    assert everything.ignored == (bucket.url("c/.x/y.jsonl"), bucket.url("c/README.md"))
    assert find_inputs([bucket.url("c")]) == everything
    assert find_inputs(urls).files == everything.files  # the same etags, listed or asked for one by one
    assert [file.path for file in find_inputs([bucket.url("c/*.jsonl")]).files] == [urls[0], urls[2]]
    assert [file.path for file in find_inputs([bucket.url("c/**/[a-z].jsonl")]).files] == urls
    (tmp_path / "list").write_text("\n".join(urls))
    assert find_inputs([f"@{tmp_path}/list"]).files == everything.files
    with pytest.raises(MissingObjectError, match=r"no object `s3://.*/nowhere`"):
        find_inputs([bucket.url("nowhere")])
    with pytest.raises(InputError, match=r"no input files in `s3://.*/nowhere/`"):
        find_inputs([bucket.url("nowhere/")])
    with pytest.raises(InputError, match="no file matches `s3://"):
        find_inputs([bucket.url("c/*.parquet")])


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("a.jsonl", LINE, ("jsonl", "none")),
        ("a.JSON", LINE, ("jsonl", "none")),
        ("a.jsonl", b"", ("jsonl", "none")),
        ("a.jsonl", gzip.compress(LINE), ("jsonl", "gzip")),
        ("a.jsonl.gz", b"not compressed", ("jsonl", "gzip")),
        ("a.jsonl.zstd", b"", ("jsonl", "zstd")),
        ("a.ndjson.BZ2", b"", ("jsonl", "bz2")),
        ("a.jsonl", b"\xfd7zXZ\x00...", ("jsonl", "xz")),
        ("a.pq", b"", ("parquet", "none")),
        ("no-suffix", b"PAR1...", ("parquet", "none")),
        ("no-suffix", b"ARROW1\0\0", ("arrow", "none")),
        ("no-suffix", b"\xff\xff\xff\xff\0\0\0\0", ("arrow", "none")),
    ],
)
def test_name_and_first_bytes_tell_format_and_compression(tmp_path, name, data, expected):
    write(tmp_path, name, data=data)
    [file] = find_inputs([str(tmp_path / name)]).files
    assert (file.format, file.compression) == expected


@pytest.mark.parametrize(
    ("name", "data", "options", "message"),
    [
        ("a.dat", LINE, {}, "cannot detect the format of `{path}` by its name or first bytes"),
        ("a.dat.gz", LINE, {}, "cannot detect the format of `{path}` by its name or first bytes"),
        ("a.txt", LINE, {}, "`{path}` is text: a document may be a line or the whole file"),
        ("a.parquet.gz", LINE, {}, "`{path}` is compressed with gzip: Parquet has its own compression"),
        ("a", LINE, {"input_format": "xml"}, "`input_format`: must be one of jsonl, text-lines, text-files, "),
    ],
)
def test_what_cannot_be_told_is_asked_for(tmp_path, name, data, options, message):
    write(tmp_path, name, data=data)
    with pytest.raises(ConfigError) as caught:
        find_inputs([str(tmp_path / name)], **options)
    assert caught.value.message.startswith(message.format(path=tmp_path / name))


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
    text = state.read_text().replace("00000-of", "X").replace("00002-of", "00000-of").replace("X", "00002-of")
    state.write_text(text)
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
