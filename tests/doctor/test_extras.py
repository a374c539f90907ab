"""Optional packages."""

from __future__ import annotations

import importlib.metadata
import tomllib
from pathlib import Path

from tokenloom.doctor import extras
from tokenloom.doctor.check import Asked, Verdict
from tokenloom.doctor.extras import Requirement, extras_of, finding_of

LINES = [
    "numpy>=2.0",
    'obstore>=0.12; extra == "s3"',
    'tokenloom[s3]; extra == "aws"',
    'boto3>=1.40 ; extra == "aws"',
    "regex; extra == 'tokenizers'",
    'multi-storage-client[boto3]>=1.3; python_version > "3" and extra == "msc"',
    'pytest>=9; extra == "test"',
]


def test_each_extra_has_its_own_packages(monkeypatch):
    monkeypatch.setattr(extras, "_version", {"obstore": "0.12.1", "boto3": "1.39.9"}.get)
    found = extras_of(LINES)
    assert found == {
        "s3": [Requirement(package="obstore", at_least="0.12", version="0.12.1")],
        "aws": [Requirement(package="boto3", at_least="1.40", version="1.39.9")],
        "tokenizers": [Requirement(package="regex", at_least="", version=None)],
        "msc": [Requirement(package="multi-storage-client", at_least="1.3", version=None)],
    }
    assert [each.is_old for (each,) in found.values()] == [False, True, False, False]


def test_an_extra_that_is_there_by_half_or_old_is_warned_of():
    there = Requirement(package="boto3", at_least="1.40", version="1.44.5")
    old = Requirement(package="orjson", at_least="3.10", version="3.9")
    missing = Requirement(package="isal", at_least="1.7", version=None)
    found = finding_of("aws", [there])
    assert (found.verdict, found.text, found.hint) == (Verdict.ok, "boto3 1.44.5", None)
    found = finding_of("preprocess", [there, old, missing])
    assert found.verdict is Verdict.warning
    assert found.text == "boto3 1.44.5, orjson 3.9; without isal; orjson 3.9 is older than 3.10"
    assert found.hint.startswith("`pip install 'tokenloom[preprocess]'`, for `tokenloom preprocess`")
    assert (found.facts["missing"], found.facts["packages"]["isal"]) == (["isal"], None)


def test_an_extra_that_nobody_installed_is_told_with_what_it_is_for():
    found = finding_of("parquet", [Requirement(package="pyarrow", at_least="20", version=None)])
    assert found.verdict is Verdict.ok
    assert (found.text, found.hint) == (
        "not installed; brings Parquet and Arrow input",
        "`pip install 'tokenloom[parquet]'`",
    )
    found = finding_of("something-new", [Requirement(package="pkg", at_least="", version=None)])
    assert found.text == "not installed"


def test_extras_are_those_of_the_package(monkeypatch):
    declared = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    lines = [f'{each}; extra == "{name}"' for name, some in declared["optional-dependencies"].items() for each in some]
    monkeypatch.setattr(importlib.metadata, "requires", lambda _: lines)
    subjects = [finding.subject for finding in extras.check_extras(Asked())]
    assert subjects == [name for name in declared["optional-dependencies"] if name in subjects]
    assert {"torch", "tokenizers", "preprocess", "parquet", "s3"} <= set(subjects)
    assert not {"all", "test", "dev"} & set(subjects)
