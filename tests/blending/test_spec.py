"""Blend specifications of users."""

import json
import os
from pathlib import Path

import pytest
from tests.support import make_config, write_corpus

from tokenloom.blending.spec import get_blend_from_list, parse_blend
from tokenloom.errors import ConfigError, DatasetNotFoundError, DuplicateDataWarning


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory, with pairs of 10, 20 and 30 tokens."""
    for number, name in enumerate(("a", "b", "c")):
        write_corpus(tmp_path / name, [[1] * 10] * (number + 1))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refusal(error, *arguments, **settings):
    with pytest.raises(error) as caught:
        parse_blend(*arguments, **settings)
    return str(caught.value)


def test_flat_lists():
    assert get_blend_from_list(None) is None
    assert get_blend_from_list(["a"]) == (["a"], None)
    assert get_blend_from_list(["a", "b"]) == (["a", "b"], None)
    assert get_blend_from_list(["30", "a", "70", " b "]) == (["a", "b"], [30.0, 70.0])
    assert get_blend_from_list(["1", "2", "3"]) == (["1", "2", "3"], None)
    assert get_blend_from_list(["1", "2"]) == (["2"], [1.0])


ALTERNATE = "must be alternating weights and prefixes, or prefixes only"


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (["30", "a", "b", "c"], f"the blend: {ALTERNATE}; entry 1 is the number '30', but entry 3 is 'b'"),
        ([], "the blend: must have at least one entry, got none"),
        ("a b", "the blend: must be a list of entries, got 'a b'"),
        (["a", " "], "the blend: prefixes must not be empty"),
        (["1", "a", "-2", "b"], "weight of `b` in the blend: must be finite and above 0, got -2.0"),
        (["1", "a", "nan", "b"], "weight of `b` in the blend: must be finite and above 0, got nan"),
        (["1", "a", "0", "b"], "weight of `b` in the blend: must be finite and above 0, got 0.0\nhint: remove the"),
    ],
)
def test_inconsistent_lists_are_refused_and_quoted(entries, message):
    with pytest.raises(ConfigError) as caught:
        get_blend_from_list(entries)
    assert str(caught.value).startswith(message)
    if entries != "a b":  # one prefix, here
        assert refusal(ConfigError, entries).startswith(message)


def test_data_may_be_named_in_all_forms(folder):
    assert parse_blend("a") == parse_blend(Path("a")) == parse_blend(["a"]) == {"blend": (["a"], None)}
    assert parse_blend(("a", "b")) == parse_blend((["a", "b"], None)) == {"blend": (["a", "b"], None)}
    weighted = {"blend": (["a", "b"], [3.0, 7.0])}
    for entries in ({"a": 3, "b": 7}, (["a", "b"], [3, 7]), [(3, "a"), (7, "b")], ["3", "a", "7", "b"]):
        assert parse_blend(entries) == weighted
    assert refusal(ConfigError, (["a", "b"], [1])) == "the blend: must have one weight per prefix, got 1 for 2 prefixes"


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
        "'x' in the blend: no file `x.idx` and `x.bin`\nhint: pass the path of the pair without `.bin` or `.idx`"
    )
    hint = "\nhint: a pair is two files, PREFIX.bin and PREFIX.idx"
    assert refusal(DatasetNotFoundError, ["a", "x*", "b"]) == "'x*' in the blend matches no pair" + hint
    (folder / "empty").mkdir()
    assert refusal(DatasetNotFoundError, ["empty"]) == "the directory `empty` contains no pair" + hint
    assert refusal(DatasetNotFoundError, ["30", "a", "70"]) == (
        "'30' in the blend: no file `30.idx` and `30.bin`\n"
        "hint: the blend has 3 entries: alternate weights and prefixes, and begin with a weight"
    )
    os.unlink("b.bin")
    incomplete = "no file `{0}b.bin`\nhint: the pair is incomplete: write it again, or move both files together"
    assert refusal(DatasetNotFoundError, ["*"]) == "'*' matches `b`: " + incomplete.format("")
    assert refusal(DatasetNotFoundError, ["."]) == "the directory `.`: " + incomplete.format("./")
    os.rename("b.idx", "b.bin")
    assert "the directory `.`: no file `./b.idx`" in refusal(DatasetNotFoundError, ["."])


def test_data_named_twice_are_a_warning(folder):
    with pytest.warns(DuplicateDataWarning, match="^`./a` appears twice in the blend$"):
        assert parse_blend(["1", "a", "2", "./a"]) == {"blend": (["a", "./a"], [1.0, 2.0])}
    os.symlink("a.bin", "link.bin")
    os.symlink("a.idx", "link.idx")
    with pytest.warns(DuplicateDataWarning, match="^`link` appears twice in the blend$"):
        parse_blend(["a", "b", "link"])
    with pytest.warns(DuplicateDataWarning, match="^`a` appears in both train and test$"):
        parse_blend(per_split={"train": ["a", "b"], "test": ["a"]})


def test_a_file_of_entries_or_another_source_is_needed(folder):
    (folder / "args").write_text("30 a\n\t70   b\n")
    assert parse_blend(args_file=folder / "args") == {"blend": (["a", "b"], [30.0, 70.0])}
    (folder / "args").write_text("30 a b c")
    assert refusal(ConfigError, args_file="args").startswith("`args`: must be alternating weights and prefixes")
    (folder / "args").write_text("\n")
    assert refusal(ConfigError, args_file="args") == "`args`: must have at least one entry, got none"
    assert refusal(ConfigError, args_file="absent").startswith("cannot read `absent`: [Errno 2]")
    message = "pass exactly one of `entries`, `per_split` and `args_file`"
    assert (refusal(ConfigError), refusal(ConfigError, ["a"], args_file="args")) == (message, message)


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
        ("{", "`split.json`: invalid JSON: Expecting property name"),
        ("[]", "`split.json`: must be a mapping with keys among train, valid, test, got 'list'"),
        ('{"training": ["a"]}', "`split.json`: must be a mapping with keys among train, valid, test, got ['training']"),
        ('{"train": "a"}', "train of `split.json`: must be a list, got 'a'"),
        ('{"train": [["a"]]}', "train of `split.json`: must have pairs of weight and prefix, got ['a']"),
        ('{"train": null}', "`split.json`: must have entries for at least one split"),
        ('{"valid": [1, "a", 0, "b"]}', "weight of `b` in valid of `split.json`: must be finite and above 0, got 0.0"),
    ],
)
def test_wrong_files_are_refused_and_quoted(folder, text, message):
    (folder / "split.json").write_text(text)
    assert refusal(ConfigError, per_split="split.json").startswith(message)
