"""Every kept input of the fuzz targets, once, without a fuzzer: what was found stays found."""

import pytest
from fuzz.targets import CORPUS, KNOWN, NAMES, load


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore::tokenloom.errors.TokenloomWarning")
def test_kept_inputs_hold(name):
    target = load(name)
    assert target.corpus, f"no inputs in {CORPUS / name}"
    for path in target.corpus:
        try:
            target.check(path.read_bytes())
        except Exception as error:
            error.add_note(f"input: {path}")
            raise


KNOWN_FINDS = sorted(path.relative_to(KNOWN) for path in KNOWN.glob("*/*"))


@pytest.mark.xfail(
    raises=BaseException, strict=True, reason="found and not mended yet: once it is, move it to the corpus"
)
@pytest.mark.parametrize("path", KNOWN_FINDS, ids=str)
def test_known_finds_are_still_there(path):
    load(path.parts[0]).check((KNOWN / path).read_bytes())


def test_no_target_lies_beside_the_list():
    modules = {path.stem for path in (CORPUS.parent / "targets").glob("*.py")} - {"__init__"}
    assert modules == set(NAMES)
    assert {path.name for path in CORPUS.iterdir()} == set(NAMES) >= {path.name for path in KNOWN.glob("*")}


def test_the_kept_inputs_are_small():
    assert sum(path.stat().st_size for path in CORPUS.rglob("*") if path.is_file()) < 300_000
