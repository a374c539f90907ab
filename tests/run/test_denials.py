"""What a lock denies: documents, records, and lists of both."""

from __future__ import annotations

import numpy as np
import pytest
from tests.run.folders import STAGE, make_run, texts, write_pair, write_toml
from tests.run.recorded import with_origins, write_lines_origins

from tokenloom.errors import ConfigError
from tokenloom.run.amend import Amendment, amend_run
from tokenloom.run.digest import order_digest
from tokenloom.run.lock import read_lock
from tokenloom.run.locking import lock_run
from tokenloom.run.run import Run


def denied(*tables: str) -> str:
    return STAGE + "".join(f"[[denied]]\n{table}\n" for table in tables)


def test_records_and_documents(tmp_path):
    make_run(tmp_path)
    with_origins(tmp_path)
    (tmp_path / "list.txt").write_text("# asked for in May\ncode.jsonl:5\n\nweb:4\n")
    tables = ('documents = ["raw/code.jsonl:2", "web:9", "code.jsonl:3"]', 'documents = "list.txt"\nfrom = 50')
    locked = lock_run(write_toml(tmp_path, denied(*tables)), consumed=0)
    first, second = locked.lock.denials
    assert (first.start, first.documents) == (0, ((0, (9,)), (1, (1,))))
    assert (second.start, second.documents) == (50, ((0, (4,)), (1, (3, 4))))
    assert locked.empty_records == ("code.jsonl:3",)


def test_denials_may_stand_in_any_order(tmp_path):
    make_run(tmp_path)
    tables = (
        'documents = ["web:1"]\nfrom = 300',
        'documents = ["web:2"]\nfrom = 100',
        'documents = ["web:3"]\nfrom = 300',
    )
    lock = lock_run(write_toml(tmp_path, denied(*tables)), consumed=0).lock
    assert [(each.start, each.documents) for each in lock.denials] == [
        (100, ((0, (2,)),)), (300, ((0, (1,)),)), (300, ((0, (3,)),)),
    ]  # fmt: skip
    assert read_lock(str(tmp_path / "run.lock")) == lock


def test_an_amendment_that_denies_nothing_is_refused(tmp_path):
    make_run(tmp_path)
    (tmp_path / "list.txt").write_text("# nothing yet\n")
    before = (tmp_path / "run.toml").read_text(), (tmp_path / "run.lock").read_text()
    with pytest.raises(ConfigError, match="expected documents to deny, found none: the list is empty"):
        amend_run(tmp_path / "run.toml", Amendment(position=250, denied=str(tmp_path / "list.txt")))
    assert ((tmp_path / "run.toml").read_text(), (tmp_path / "run.lock").read_text()) == before


def test_a_record_that_comes_once_more_leaves_the_past_as_it_was(tmp_path):
    make_run(tmp_path)
    with_origins(tmp_path)
    path = write_toml(
        tmp_path,
        denied('documents = ["code.jsonl:2"]\nfrom = 100'),
        sources='[sources]\nweb = "web-*"\ncode = "code*"\n',
    )
    old = lock_run(path, consumed=0).lock
    expected = texts(Run.open(path).dataset(), range(250))
    write_pair(tmp_path / "code-2", 60, first=10**6, seed=9)
    write_lines_origins(str(tmp_path / "code-2"), [(0, 1, 60)], path="raw/code.jsonl", num_records=200)
    new = amend_run(path, Amendment(position=250, grows=True)).locked.lock
    assert [(each.start, each.documents) for each in new.denials] == [(100, ((1, (1,)),)), (250, ((1, (141,)),))]
    assert order_digest(new, 250) == order_digest(old, 250)
    dataset = Run.open(path).dataset()
    assert texts(dataset, range(250)) == expected
    document = range(10**6, 10**6 + 2000)
    length = np.random.default_rng(9).integers(1, 40, size=60).tolist()
    gone = set(document[length[0] : length[0] + length[1]])
    assert not gone & set(dataset.batch(range(250, 600))["tokens"].ravel().tolist())


def test_a_reason_decides_nothing(tmp_path):
    make_run(tmp_path)
    path = write_toml(tmp_path, denied('documents = ["web:1"]'))
    lock = lock_run(path, consumed=0).lock
    path.write_text(path.read_text() + 'reason = "a letter of May"\n')
    assert Run.open(path).lock == lock


def test_something_has_to_be_left_of_a_source(tmp_path):
    make_run(tmp_path)
    everything = [f"code:{number}" for number in range(140)]
    (tmp_path / "list.txt").write_text("\n".join(everything))
    path = write_toml(tmp_path, denied('documents = "list.txt"\nfrom = 300'))
    with pytest.raises(
        ConfigError, match=r"(?s)of source 'code' that are not denied, found none from position 300 on.*run amend"
    ):
        lock_run(path, consumed=0)
    (tmp_path / "list.txt").write_text("\n".join(everything[1:]))
    assert len(lock_run(path, consumed=0).lock.denials) == 1
    two = (
        STAGE.replace("samples = 600", "samples = 300")
        + '[[stages]]\nname = "web only"\nsamples = 300\nweights = { web = 1 }\n'
    )
    (tmp_path / "list.txt").write_text("\n".join(everything))
    path = write_toml(tmp_path, two + '[[denied]]\ndocuments = "list.txt"\nfrom = 300\n')
    assert len(lock_run(path, consumed=0).lock.denials) == 1
