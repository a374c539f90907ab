"""The runner of Megatron's own tests: what it reads out of reports, and which tests it finds."""

import pytest
from peer_suite import run
from peer_suite.run import Outcomes, data_tests, missing_names, read_report

REPORT = """<testsuites><testsuite>
<testcase classname="a" name="test_good"/>
<testcase classname="a" name="test_skipped"><skipped message="no GPU"/></testcase>
<testcase classname="a" name="test_bad"><failure message="assert 1 == 2&#10;more">text</failure></testcase>
<testcase classname="a" name="test_lacks"><failure message="AttributeError: broken">
E AttributeError: 'GPTDataset' object has no attribute 'shuffle_index'</failure></testcase>
<testcase classname="" name="tests.a"><error message="collection failure">
E ImportError: cannot import name 'normalize' from 'tokenloom.megatron.core.datasets.utils'</error></testcase>
</testsuite></testsuites>"""


def test_reports_are_read():
    outcomes = read_report(REPORT, "tests/a.py")
    assert outcomes.passed == {"test_good"}
    assert outcomes.skipped == {"test_skipped"}
    assert outcomes.failed == {
        "test_bad": "assert 1 == 2",
        "test_lacks": "AttributeError: broken ['GPTDataset' object has no attribute 'shuffle_index']",
        "tests.a": "ImportError: cannot import name 'normalize' from 'tokenloom.megatron.core.datasets.utils'",
    }
    assert missing_names(outcomes) == ["normalize", "shuffle_index"]


def test_files_that_use_data_are_found(tmp_path):
    files = {"data/test_any.py": "", "models/test_gpt.py": "from megatron.core.models import gpt", "data/helper.py": ""}
    files["models/test_t5.py"] = "from megatron.core.datasets.t5_dataset import T5MaskedWordPieceDataset"
    for name, text in files.items():
        path = tmp_path / "tests" / "unit_tests" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert data_tests(tmp_path) == ["tests/unit_tests/data/test_any.py", "tests/unit_tests/models/test_t5.py"]


@pytest.mark.parametrize(
    "theirs",
    [
        Outcomes(failed={"tests.x": "ModuleNotFoundError: No module named 'triton'"}),
        Outcomes(failed={"tests/x.py": "no end within 900 s"}),
        Outcomes(skipped={"a", "b"}),
        Outcomes(),
    ],
)
def test_nothing_that_passes_with_megatron_is_a_failure(tmp_path, monkeypatch, capsys, theirs):
    monkeypatch.setattr(run, "run_file", lambda file, **settings: theirs)
    assert run.main([str(tmp_path), "--files", "tests/x.py"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:-2] == [f"  {name}: {text}" for name, text in theirs.failed.items()]
    assert lines[-2:] == [
        "0 of 0 tests that pass with Megatron pass with tokenloom in its place",
        "nothing was compared: no test passes with Megatron itself",
    ]


def test_what_passes_with_megatron_only_is_a_failure(tmp_path, monkeypatch, capsys):
    def run_file(file: str, *, plain: bool, **settings: object) -> Outcomes:
        lacks = "ImportError: cannot import name 'normalize' from 'tokenloom"
        if plain:
            return Outcomes(passed={"a", "b"}, failed={"c": "no GPU"})
        return Outcomes(passed={"a"}, failed={"b": lacks, "c": "no GPU"})

    monkeypatch.setattr(run, "run_file", run_file)
    assert run.main([str(tmp_path), "--files", "tests/x.py"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "tests/x.py: 1 pass, 1 fail, 1 fail with Megatron too, 0 are skipped; Megatron itself: 2 pass, 1 fail",
        "  missing names: normalize",
        "  b: ImportError: cannot import name 'normalize' from 'tokenloom",
        "1 of 2 tests that pass with Megatron pass with tokenloom in its place",
    ]
