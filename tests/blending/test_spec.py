"""The blend as users write it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.support import make_config, write_corpus

from tokenloom.blending.spec import get_blend_from_list, parse_blend
from tokenloom.errors import ConfigError, DatasetNotFoundError, DuplicateDataWarning


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with pairs of 10, 20 and 30 tokens, which is the working directory."""
    for number, name in enumerate(("a", "b", "c")):
        write_corpus(tmp_path / name, [[1] * 10] * (number + 1))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refusal(error, *arguments, **settings):
    with pytest.raises(error) as caught:
        parse_blend(*arguments, **settings)
    return str(caught.value)


# --- the flat list ------------------------------------------------------------------------------------------------


def test_flat_lists():
    assert get_blend_from_list(None) is None
    assert get_blend_from_list(["a"]) == (["a"], None)
    assert get_blend_from_list(["a", "b"]) == (["a", "b"], None)
    assert get_blend_from_list(["30", "a", "70", " b "]) == (["a", "b"], [30.0, 70.0])
    assert get_blend_from_list(["1", "2", "3"]) == (["1", "2", "3"], None)
    assert get_blend_from_list(["1", "2"]) == (["2"], [1.0])


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (
            ["30", "a", "b", "c"],
            "expected weights and prefixes by turns in the blend, or prefixes only, found the number '30' at entry 1 "
            "and no number, 'b', at entry 3",
        ),
        ([], "expected at least one entry in the blend, found none"),
        ("a b", "expected a list of entries in the blend, found the string 'a b'"),
        (["a", " "], "expected prefixes in the blend, found an empty one"),
        (["1", "a", "-2", "b"], "expected a finite weight above 0 for `b` in the blend, found -2.0"),
        (["1", "a", "nan", "b"], "expected a finite weight above 0 for `b` in the blend, found nan"),
        (["1", "a", "0", "b"], "expected a finite weight above 0 for `b` in the blend, found 0.0\nhint: leave the"),
    ],
)
def test_inconsistent_lists_are_refused_and_quoted(entries, message):
    with pytest.raises(ConfigError) as caught:
        get_blend_from_list(entries)
    assert str(caught.value).startswith(message)
    if entries != "a b":  # one prefix, here
        assert refusal(ConfigError, entries).startswith(message)


# --- what an entry stands for -------------------------------------------------------------------------------------


def test_data_may_be_named_in_all_forms(folder):
    assert parse_blend("a") == parse_blend(Path("a")) == parse_blend(["a"]) == {"blend": (["a"], None)}
    assert parse_blend(("a", "b")) == parse_blend((["a", "b"], None)) == {"blend": (["a", "b"], None)}
    weighted = {"blend": (["a", "b"], [3.0, 7.0])}
    for entries in ({"a": 3, "b": 7}, (["a", "b"], [3, 7]), [(3, "a"), (7, "b")], ["3", "a", "7", "b"]):
        assert parse_blend(entries) == weighted
    assert refusal(ConfigError, (["a", "b"], [1])) == (
        "expected as many weights as prefixes in the blend, found 1 for 2"
    )


def test_globs_and_directories_stand_for_their_pairs(folder):
    (folder / "deep" / "er").mkdir(parents=True)
    write_corpus(folder / "deep" / "er" / "d", [[1]])
    assert parse_blend(["[ab]"]) == {"blend": (["a", "b"], None)}
    assert parse_blend(["*.bin"])["blend"][0] == ["a", "b", "c"]
    assert parse_blend(["**/*"])["blend"][0] == ["a", "b", "c", "deep/er/d"]
    assert parse_blend(["deep/*"])["blend"][0] == ["deep/er/d"]
    assert parse_blend(["."])["blend"][0] == ["./a", "./b", "./c"]
    assert parse_blend([f"{folder}/"])["blend"][0] == [f"{folder}/{name}" for name in "abc"]


def test_a_weight_is_divided_by_tokens(folder):
    write_corpus(folder / "z", [[1]])
    assert parse_blend(["60", "[abc]", "5", "z"]) == {"blend": (["a", "b", "c", "z"], [10.0, 20.0, 30.0, 5.0])}
    assert parse_blend(["7.3", "[a]"]) == {"blend": (["a"], [7.3])}


def test_entries_without_a_pair_are_refused_and_quoted(folder):
    assert refusal(DatasetNotFoundError, ["a", "x", "b"]) == (
        "'x' in the blend: no file `x.idx` and `x.bin`\nhint: a prefix is the path without `.bin` or `.idx`"
    )
    assert refusal(DatasetNotFoundError, ["a", "x*", "b"]) == (
        "'x*' in the blend matches no pair\nhint: a pair is two files, PREFIX.bin and PREFIX.idx"
    )
    (folder / "empty").mkdir()
    assert refusal(DatasetNotFoundError, ["empty"]) == (
        "the directory `empty` holds no pair\nhint: a pair is two files, PREFIX.bin and PREFIX.idx"
    )
    assert refusal(DatasetNotFoundError, ["30", "a", "70"]) == (
        "'30' in the blend: no file `30.idx` and `30.bin`\n"
        "hint: the blend has 3 entries: weights and prefixes by turns begin with a weight, and are even"
    )
    os.unlink("b.bin")
    incomplete = "no file `{0}b.bin`\nhint: the pair is incomplete: it was not finished, or one file was moved"
    assert refusal(DatasetNotFoundError, ["*"]) == "'*' matches `b`: " + incomplete.format("")
    assert refusal(DatasetNotFoundError, ["."]) == "the directory `.`: " + incomplete.format("./")
    os.rename("b.idx", "b.bin")
    assert "the directory `.`: no file `./b.idx`" in refusal(DatasetNotFoundError, ["."])


def test_data_named_twice_are_a_warning(folder):
    with pytest.warns(DuplicateDataWarning, match="^the data of `./a` are twice in the blend$"):
        assert parse_blend(["1", "a", "2", "./a"]) == {"blend": (["a", "./a"], [1.0, 2.0])}
    os.symlink("a.bin", "link.bin")
    os.symlink("a.idx", "link.idx")
    with pytest.warns(DuplicateDataWarning, match="^the data of `link` are twice in the blend$"):
        parse_blend(["a", "b", "link"])
    with pytest.warns(DuplicateDataWarning, match="^the data of `a` are in train and in test$"):
        parse_blend(per_split={"train": ["a", "b"], "test": ["a"]})


# --- files --------------------------------------------------------------------------------------------------------


def test_a_file_of_entries(folder):
    (folder / "args").write_text("30 a\n\t70   b\n")
    assert parse_blend(args_file=folder / "args") == {"blend": (["a", "b"], [30.0, 70.0])}
    (folder / "args").write_text("30 a b c")
    assert refusal(ConfigError, args_file="args").startswith("expected weights and prefixes by turns in `args`")
    (folder / "args").write_text("\n")
    assert refusal(ConfigError, args_file="args") == "expected at least one entry in `args`, found none"
    assert refusal(ConfigError, args_file="absent").startswith("`absent` cannot be read: [Errno 2]")


def test_entries_per_split(folder):
    entries = {"train": ["30", "a", "70", "b"], "valid": ["c"], "test": None}
    expected = {"blend_per_split": [(["a", "b"], [30.0, 70.0]), (["c"], None), None]}
    assert parse_blend(per_split=entries) == expected
    (folder / "split.json").write_text(json.dumps(entries))
    assert parse_blend(per_split="split.json") == expected
    (folder / "split.json").write_text(json.dumps({"train": [30, "a", 70.0, "b"], "valid": ["c"]}))
    assert parse_blend(per_split=folder / "split.json") == expected
    assert make_config(None, **parse_blend(per_split=entries)).blend_per_split == expected["blend_per_split"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "`split.json` is not JSON: Expecting property name"),
        ("[]", "expected a mapping with the keys train, valid, test in `split.json`, found 'list'"),
        (
            '{"training": ["a"]}',
            "expected a mapping with the keys train, valid, test in `split.json`, found ['training']",
        ),
        ('{"train": "a"}', "expected a list for train in `split.json`, found 'a'"),
        ('{"train": [["a"]]}', "expected prefixes and weights in train of `split.json`, found ['a']"),
        ('{"train": null}', "expected data for at least one split in `split.json`, found none"),
        ('{"valid": [1, "a", 0, "b"]}', "expected a finite weight above 0 for `b` in valid of `split.json`, found 0.0"),
    ],
)
def test_wrong_files_are_refused_and_quoted(folder, text, message):
    (folder / "split.json").write_text(text)
    assert refusal(ConfigError, per_split="split.json").startswith(message)


def test_one_source_is_needed():
    message = "expected exactly one of a list of entries, entries per split, and a file of entries"
    assert refusal(ConfigError) == message
    assert refusal(ConfigError, ["a"], args_file="args") == message


# --- weights that go around all this ------------------------------------------------------------------------------


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf")])
def test_settings_check_weights_too(weight):
    with pytest.raises(ConfigError, match=r"^expected a finite weight above 0 for `b` in `blend`, found"):
        make_config(None, blend=(["a", "b"], [1.0, weight]), split="1")
    with pytest.raises(ConfigError, match=r"^expected a finite weight above 0 for `b` in `blend_per_split\[1\]`"):
        make_config(None, blend_per_split=[None, (["a", "b"], [1.0, weight]), None])
