"""Reading a TOML file: what is wrong with it is a ConfigError that names the file, and the key where there is one."""

from __future__ import annotations

from contextlib import suppress
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenloom.errors import ConfigError
from tokenloom.run.toml_file import parse_toml, read_text

NO_TOML = {
    "a = 1\nb = \n": "Invalid value (at line 2, column 5)",
    "a = 1\nb\nc = 2": "(at line 2, column 2)",
    "a = 1\na = 2\n": "Cannot overwrite a value (at line 2, column 6)",
    "a = 1\n[b]\nc = 1\n[b]\n": "(at line 4, column 3)",
    "a = 1\nb = 2001-13-01": "",
    "a = 1\nb = [1,\n": "(at end of document)",
    f"a = {'9' * 5000}": "",
    "a = 1e99999999999999999999": "",
    "a = " + "[" * 100_000: "",
}


@pytest.mark.parametrize("text", NO_TOML)
def test_what_is_no_toml_is_refused_with_its_place(text):
    with pytest.raises(ConfigError) as caught:
        parse_toml(text, path="run.toml")
    assert caught.value.message.startswith("run.toml: expected TOML, found something else: ")
    assert NO_TOML[text] in caught.value.message


def test_fractions_are_exact():
    assert parse_toml("a = 0.1", path="run.toml").values == {"a": Decimal("0.1")}


def test_files_that_hold_no_text(tmp_path):
    path = tmp_path / "run.toml"
    with pytest.raises(ConfigError, match="cannot be read: No such file or directory\nhint: `tokenloom run init`"):
        read_text(path)
    path.write_bytes(b"seed = 1\nname = '\xe9'\n")
    with pytest.raises(ConfigError, match=r"run.toml` cannot be read: .* byte 0xe9 in position 17"):
        read_text(path)
    path.write_bytes("seed = 1".encode("utf-16"))
    with pytest.raises(ConfigError, match=r"run.toml` cannot be read: .* byte 0xff in position 0"):
        read_text(path)
    with pytest.raises(ConfigError, match="hint: save it as UTF-8 without a byte order mark"):
        parse_toml("\ufeffseed = 1", path="run.toml")
    with pytest.raises(ConfigError, match="Is a directory"):
        read_text(tmp_path)


def refused(table, key, **hint):
    with pytest.raises(ConfigError) as caught:
        table.refuse(key, "wrong", **hint)
    return str(caught.value)


def test_errors_name_the_key_without_its_secrets():
    top = parse_toml('[a]\n"b c" = [1]\n[[d]]\n[[d]]\n"https://host/key?sig=secret" = 1\n', path="run.toml")
    assert refused(top, None, hint="mend it") == "run.toml: wrong\nhint: mend it"
    assert refused(top.table("a"), "b c") == 'run.toml: a."b c": wrong'
    (key,) = top.tables("d", hint="")[1].values
    assert "secret" not in refused(top.tables("d", hint="")[1], key)
    assert refused(top.tables("d", hint="")[1], None) == "run.toml: d.2: wrong"


@given(st.text("[]{}=\"'.,#\n\r a1e_-:\\\x00é"))
def test_any_text_is_read_or_refused(text):
    with suppress(ConfigError):
        parse_toml(text, path="run.toml")
