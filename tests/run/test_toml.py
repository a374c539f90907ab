"""Reading a TOML file, with counts, weights and shares: an error names the file and the key."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenloom.errors import ConfigError
from tokenloom.run.toml_file import count_of, parse_toml, read_text, share_of, weight_of

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
    assert caught.value.message.startswith("run.toml: invalid TOML: ")
    assert NO_TOML[text] in caught.value.message


def test_fractions_are_exact():
    assert parse_toml("a = 0.1", path="run.toml").values == {"a": Decimal("0.1")}


def test_files_that_hold_no_text(tmp_path):
    path = tmp_path / "run.toml"
    with pytest.raises(
        ConfigError, match="cannot be read: No such file or directory\nhint: create it with `tokenloom run init`"
    ):
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


NAN = Decimal("nan")
COUNTS = {"900B": 900 * 10**9, "1.5T": 15 * 10**11, "3K": 3000, "0.5M": 500_000, "10_000_000": 10**7}
SHARES = {"0.1%": Fraction(1, 1000), "50%": Fraction(1, 2), "2 %": Fraction(1, 50), Decimal("0.5"): Fraction(1, 2)}
WEIGHTS = [0, 1, Decimal("0.1"), Decimal("1e-30"), Decimal("1e29"), 10**29]


@pytest.mark.parametrize(
    ("read", "value", "number"),
    [
        *((count_of, *each) for each in (*COUNTS.items(), (1, 1), (2**63 - 1, 2**63 - 1), (Decimal("1e9"), 10**9))),
        *((share_of, *each) for each in SHARES.items()),
        *((weight_of, each, Fraction(each)) for each in WEIGHTS),
    ],
)
def test_what_is_read(read, value, number):
    assert read(value) == number


NO_COUNTS = [0, 2**63, True, Decimal("1.5"), NAN, "1.5", "-1B", "1.2345K", "900X", "1__0", None, "9999999T"]
NO_WEIGHTS = [-1, NAN, Decimal("inf"), True, "1", Decimal("1e999999999"), Decimal("1e-31"), 10**30]
NO_SHARES = ["0%", "50.1%", "-1%", "1", "%", "nan%", 0, 5, True, Decimal("0.6"), NAN, None]


@pytest.mark.parametrize(
    ("read", "value", "message"),
    [
        *((count_of, each, r"(?s)must be an integer in .*B or G 10\^9") for each in NO_COUNTS),
        *((weight_of, each, "must be a finite number of at least 0, got") for each in NO_WEIGHTS),
        *((share_of, each, "must be above 0% and at most 50%, got") for each in NO_SHARES),
    ],
)
def test_what_is_refused(read, value, message):
    with pytest.raises(ConfigError, match=message):
        read(value)


@given(st.one_of(st.text("0123456789_.KMBGT% e-"), st.decimals(), st.integers(), st.booleans(), st.none()))
def test_any_value_is_a_number_or_refused(value):
    for read in (count_of, weight_of, share_of):
        try:
            number = read(value)
        except ConfigError:
            continue
        assert 0 <= number < 10**30
