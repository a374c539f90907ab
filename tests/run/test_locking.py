"""`run.lock`: what is consumed stays, or nothing is written; the file comes back as it was written, or not at all."""

import dataclasses
import hashlib
import json
import os
import re
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.faults import dies_at
from tests.run.folders import HEAD, SOURCES, STAGE, make_run, texts, write_pair, write_toml
from tests.run.small_runs import make_lock, make_pair, random_locks, segment, source_of

from tokenloom.errors import ConfigError, DatasetNotFoundError
from tokenloom.loading.thread_loader import ThreadLoader
from tokenloom.run.lock import (
    LockedDenial,
    LockedPair,
    LockedSource,
    LockedTokenizer,
    RunLock,
    lock_bytes,
    parse_lock,
    read_lock,
    read_lock_if_there,
    write_lock,
)
from tokenloom.run.locking import lock_run
from tokenloom.run.run import Run
from tokenloom.samplers import MegatronPretrainingSampler

CUT = STAGE.replace("600", "200")
NEXT = '[[stages]]\nname = "next"\nsamples = 400\nweights = { web = 1, code = 4 }\n'


def test_a_new_stage_from_a_consumed_position_on(tmp_path):
    before = make_run(tmp_path)
    expected, digest = texts(before.dataset(), range(200)), before.digest(200)
    path = write_toml(tmp_path, CUT + NEXT.replace("400", "2000"))
    result = lock_run(path, consumed=200)
    assert result.moved.position >= 200
    after = Run.open(path)
    assert (texts(after.dataset(), range(200)), after.digest(200)) == (expected, digest)
    dataset = after.dataset()
    first = after.timeline.walk_of(0, 0).num_windows
    windows = [p.window for k in range(2200) if (p := dataset.place(k)).source == "web" and p.walk == 0]
    assert sorted(windows) == list(range(first))  # none twice, none left out


def test_an_edit_of_the_past_is_refused_and_nothing_written(tmp_path):
    make_run(tmp_path)
    locked = (tmp_path / "run.lock").read_bytes()
    path = write_toml(tmp_path, STAGE.replace("web = 3", "web = 2"))
    with pytest.raises(ConfigError, match=r"position 0 is before position 300 and must not change"):
        lock_run(path, consumed=300)
    with pytest.raises(ConfigError, match=r"position \d+ may already be consumed: .*\n.*--consumed-samples"):
        lock_run(path)
    assert (tmp_path / "run.lock").read_bytes() == locked
    assert lock_run(path, consumed=0).moved is not None
    path = write_toml(tmp_path, STAGE, head=HEAD.replace("1234", "5"))
    assert lock_run(path, consumed=0).moved.position == 0
    assert Run.open(path).lock.seed == 5


def test_a_source_that_grows(tmp_path):
    before = make_run(tmp_path)
    expected = texts(before.dataset(), range(300))
    write_pair(tmp_path / "web-00", 90, first=10**6, seed=9)  # sorts between the others
    path = tmp_path / "run.toml"
    lock_run(path, consumed=300)
    after = Run.open(path)
    assert texts(after.dataset(), range(300)) == expected
    dataset = after.dataset()
    new = [k for k in range(600) if max(dataset.sample(k)["tokens"]) >= 10**6]
    assert new
    assert min(new) >= 300
    assert [pair.prefix.rpartition("/")[2] for pair in after.lock.sources[0].pairs] == ["web-0", "web-1", "web-00"]
    with pytest.raises(ConfigError):
        before.dataset().run_order.position_of_state(dataset.run_order.order_state(500))


def test_a_source_that_is_added(tmp_path):
    before = make_run(tmp_path)
    expected = texts(before.dataset(), range(200))
    write_pair(tmp_path / "books", 80, first=10**6, seed=5)
    sources = SOURCES + 'books = "books"\n'
    stage = NEXT.replace("code = 4", "code = 4, books = 2")
    lock_run(write_toml(tmp_path, CUT + stage, sources=sources), consumed=200)
    dataset = Run.open(tmp_path / "run.toml").dataset()
    assert texts(dataset, range(200)) == expected
    assert np.bincount(dataset.batch(range(200, 600))["dataset_id"]).tolist() == [57, 229, 114]


def test_a_run_is_locked_once_and_again_after_changes_that_count(tmp_path):
    run = make_run(tmp_path)
    locked = (tmp_path / "run.lock").read_bytes()
    again = Run.open(tmp_path / "run.toml")
    assert (again.identity, again.num_samples) == (run.identity, 600)
    assert (tmp_path / "run.lock").read_bytes() == locked
    assert [again.digest(k) for k in (0, 300)] == [run.digest(k) for k in (0, 300)]
    assert re.fullmatch("[0-9a-f]{64}", run.digest(600))
    path = write_toml(tmp_path, "# a comment\n" + STAGE.replace("3, code = 1", "6, code = 2"))
    assert texts(Run.open(path).dataset(), [1, 2]) == texts(run.dataset(), [1, 2])
    path = write_toml(tmp_path, STAGE.replace("600", "700"))
    with pytest.raises(ConfigError, match=r"run\.toml` changed after it was locked.*\n.*tokenloom run lock"):
        Run.open(path)
    with pytest.raises(DatasetNotFoundError, match=r"no file `.*nothing\.toml`"):
        Run.open(tmp_path / "nothing.toml")


def test_a_run_may_be_moved_with_its_data(tmp_path):
    (tmp_path / "a").mkdir()
    run = make_run(tmp_path / "a")
    expected = texts(run.dataset(), range(20))
    (tmp_path / "a").rename(tmp_path / "b")
    assert texts(Run.open(tmp_path / "b" / "run.toml").dataset(), range(20)) == expected


def test_a_start_imports_nothing_that_only_locking_needs(tmp_path):
    make_run(tmp_path)
    code = f"import sys; from tokenloom import Run\nRun.open('{tmp_path}/run.toml').dataset().batch(range(4))\n"
    code += "names = ('amend', 'changes', 'locking', 'plan')\n"
    code += "print([name for name in names if f'tokenloom.run.{name}' in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


# --- the file -------------------------------------------------------------------------------------------------------
HINT = "remove it and run `tokenloom run lock`"


def full_lock(folder):
    pairs = (
        make_pair(f"{folder}/data/web-0", tokens_crc32=0, index_crc32=255, fingerprint="f", held_blocks=1),
        make_pair("s3://corpus/web-1", held_documents=2, held_tokens=20, packs=((4, 30), (8, 14)), since=100),
    )
    return make_lock(
        LockedSource(name="web", max_passes=4, pairs=pairs),
        source_of("code", "/elsewhere/code"),
        dataset="fim",
        samples={"eod_mask_loss": True, "fim_rate": 0.5},
        tokenizer=LockedTokenizer(name="tokenizer.json", fingerprint="f", eod=0, pad=None, vocab_size=100),
        segments=(
            segment(0, 100, [8, 2], mixed_as=200, length=4),
            segment(100, None, {1: 1}, length=8),
        ),
        denials=(LockedDenial(start=7, documents=((0, (1, 5)), (1, (2,)))),),
        consumed=50,
    )


def test_the_file_of_a_lock(tmp_path):
    path = str(tmp_path / "run.lock")
    write_lock(path, full_lock(tmp_path))
    lines = (tmp_path / "run.lock").read_text().splitlines()
    digest = hashlib.sha256("".join(f"{line}\n" for line in lines[1:]).encode()).hexdigest()
    assert lines == [
        f'{{"format": "tokenloom run lock", "version": 1, "sha256": "{digest}",',
        f'"settings_sha256": "{"0" * 64}",',
        '"content_sha256": "",',
        '"order": 1,',
        '"seed": 1234,',
        '"documents": "shuffled",',
        '"windows": "concat",',
        '"mixing_block": 1024,',
        '"dataset": "fim",',
        '"samples": {"eod_mask_loss": true, "fim_rate": 0.5},',
        '"tokenizer": {"name": "tokenizer.json", "fingerprint": "f", "eod": 0, "pad": null, "vocab_size": 100},',
        '"consumed": 50,',
        '"sources": [',
        '{"name": "web", "max_passes": 4, "pairs": [',
        '{"prefix": "data/web-0", "num_documents": 10, "num_tokens": 100, "dtype": "uint16", "idx_bytes": 242, '
        '"index_start_crc32": "deadbeef", "tokens_crc32": "00000000", "index_crc32": "000000ff", "fingerprint": "f", '
        '"held_blocks": 1},',
        '{"prefix": "s3://corpus/web-1", "num_documents": 10, "num_tokens": 100, "dtype": "uint16", "idx_bytes": 242, '
        '"index_start_crc32": "deadbeef", "held_documents": 2, "held_tokens": 20, "packs": [[4, 30], [8, 14]], '
        '"since": 100}',
        "]},",
        '{"name": "code", "max_passes": null, "pairs": [',
        '{"prefix": "/elsewhere/code", "num_documents": 10, "num_tokens": 100, "dtype": "uint16", "idx_bytes": 242, '
        '"index_start_crc32": "deadbeef"}',
        "]}",
        "],",
        '"segments": [',
        '{"stage": "main", "start": 0, "num_samples": 100, "mixed_as": 200, "sequence_length": 4, '
        '"weights": [[0, 8], [1, 2]]},',
        '{"stage": "main", "start": 100, "num_samples": null, "mixed_as": null, "sequence_length": 8, '
        '"weights": [[1, 1]]}',
        "],",
        '"denials": [',
        '{"start": 7, "documents": [[0, [1, 5]], [1, [2]]]}',
        "]}",
    ]
    assert json.loads("\n".join(lines))["consumed"] == 50
    assert read_lock(path) == full_lock(tmp_path)


def test_a_lock_in_object_storage_names_no_local_pair(bucket):
    folder = f"s3://{bucket.name}"
    lock = make_lock(source_of("web", f"{folder}/data/web", "s3://elsewhere/web"))
    write_lock(f"{folder}/run.lock", lock)
    assert read_lock(f"{folder}/run.lock") == lock
    assert read_lock_if_there(f"{folder}/other.lock") is None
    with pytest.raises(ConfigError, match="cannot refer to the local pair `data/web`"):
        write_lock(f"{folder}/run.lock", make_lock(source_of("web", "data/web")))
    with pytest.raises(ConfigError, match="in object storage refers to the local path '/etc/web'"):
        parse_lock(with_members(in_pair(prefix="/etc/web")), path="s3://bucket/run.lock")


def test_no_secret_is_written(tmp_path):
    tokenizer = LockedTokenizer(name="https://host/t.json?sig=secret", fingerprint="f", eod=0, pad=0, vocab_size=9)
    data = lock_bytes(make_lock(tokenizer=tokenizer), path="run.lock")
    assert b"https://host/t.json" in data
    assert b"secret" not in data


def test_a_lock_in_the_working_directory_names_pairs_from_there(tmp_path, monkeypatch):
    assert read_lock_if_there(f"{tmp_path}/run.lock") is None
    with pytest.raises(ConfigError, match=r"no lock `.*run\.lock`") as caught:
        read_lock(f"{tmp_path}/run.lock")
    assert caught.value.hint == "create it with `tokenloom run lock`"
    monkeypatch.chdir(tmp_path)
    lock = make_lock(source_of("web", "data/web"))
    write_lock("run.lock", lock)
    assert read_lock("run.lock") == lock
    assert read_lock(f"{tmp_path}/run.lock").sources[0].pairs[0].prefix == f"{tmp_path}/data/web"


WHOLE = lock_bytes(full_lock("."), path="run.lock")


MERGE = b'<<<<<<< ours\n"seed": 1234,\n=======\n"seed": 60,\n>>>>>>> theirs'


@pytest.mark.parametrize(
    ("data", "message", "hint"),
    [
        (WHOLE.replace(b'"version": 1', b'"version": 2', 1), "has format version 2; this", "upgrade tokenloom"),
        (WHOLE.replace(b"[0, 8]", b"[0, 9]"), "was edited or truncated: expected sha256", HINT),
        (WHOLE.replace(b"\n", b"\r\n"), "was edited or truncated", HINT),
        (json.dumps(json.loads(WHOLE)).encode(), "is not the lock of a run, or was edited: its first line has", HINT),
        (b'{"format": "tokenloom catalogue"}', "is not the lock of a run", "pass the lock of a run"),
        (WHOLE.replace(b'"seed": 1234,', MERGE), "has merge conflicts", HINT),
    ],
)
def test_what_is_not_as_it_was_written_is_refused(data, message, hint):
    with pytest.raises(ConfigError) as caught:
        parse_lock(data, path="here/run.lock")
    assert caught.value.message.startswith(f"`here/run.lock` {message}")
    assert hint in caught.value.hint


def test_concurrent_writers_leave_one_of_their_locks(tmp_path):
    path, folder = f"{tmp_path}/run.lock", tmp_path
    locks = [dataclasses.replace(full_lock(folder), consumed=number) for number in range(4)]
    write_lock(path, locks[0])
    threads = [threading.Thread(target=lambda lock=lock: [write_lock(path, lock) for _ in range(20)]) for lock in locks]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert read_lock(path) in locks
    assert read_lock(path) in locks
    assert os.listdir(tmp_path) == ["run.lock"]


def test_any_changed_byte_and_any_truncation_is_refused(rng):
    for _ in range(100):
        data = bytearray(WHOLE)
        data[rng.integers(len(data))] ^= 1 << rng.integers(8)
        for each in (bytes(data), WHOLE[: rng.integers(len(WHOLE))]):
            with pytest.raises(ConfigError, match=r"`run\.lock`"):
                parse_lock(each, path="run.lock")


@pytest.mark.slow
def test_a_lock_of_40000_sources(tmp_path):
    sources = [source_of(f"source-{i}", f"{tmp_path}/data/{i}", num_tokens=i) for i in range(40_000)]
    lock = make_lock(*sources)
    write_lock(f"{tmp_path}/run.lock", lock)
    assert read_lock(f"{tmp_path}/run.lock") == lock


def test_a_kill_while_it_is_written_leaves_the_old_lock_or_the_new_one(tmp_path):
    path = f"{tmp_path}/run.lock"
    old, new = full_lock(tmp_path), dataclasses.replace(full_lock(tmp_path), consumed=99)
    found = []
    for number in range(1000):
        write_lock(path, old)
        is_killed = dies_at(tmp_path, number, lambda: write_lock(path, new))
        found.append(read_lock(path).consumed)
        if not is_killed:
            break
    assert found[-1] == 99
    assert set(found[:-1]) <= {50, 99}
    assert 50 in found
    write_lock(path, new)
    assert read_lock(path) == new


ANY_NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=12)


@given(
    random_locks(), ANY_NAMES, st.integers(0, 2**60 - 1), st.sampled_from(["data/", "/a/b/", "s3://bucket/"]), st.data()
)
def test_every_lock_comes_back(lock: RunLock, name, count, folder, data):
    def changed(pair: LockedPair) -> LockedPair:
        crc32, packs = data.draw(st.none() | st.integers(0, 2**32 - 1)), ((8, count),) if count % 2 else ()
        new = {"prefix": f"{folder}é{pair.prefix}", "num_tokens": count, "index_crc32": crc32, "packs": packs}
        return dataclasses.replace(pair, **new, fingerprint=data.draw(st.none() | ANY_NAMES))

    sources = [dataclasses.replace(each, pairs=tuple(map(changed, each.pairs)), name=name) for each in lock.sources]
    segments = [dataclasses.replace(each, stage=name, exhausted=(0, 2)) for each in lock.segments]
    denial = LockedDenial(start=count, documents=((0, (1, count)),))
    lock = dataclasses.replace(lock, sources=tuple(sources), segments=tuple(segments), denials=(denial,), seed=count)
    written = lock_bytes(lock, path="run.lock")
    assert parse_lock(written, path="run.lock") == lock
    assert lock_bytes(parse_lock(written, path="run.lock"), path="run.lock") == written
    assert written.count(b"\n") == sum(len(each.pairs) + 2 for each in sources) + len(segments) + 1 + 18


def with_members(change):
    """Returns the file of a lock that something else has written, with a checksum of its own."""
    lock = make_lock(source_of("web", "web"), source_of("code", "code"), denials=(LockedDenial(start=1, documents=()),))
    members = json.loads(lock_bytes(lock, path="run.lock"))
    change(members)
    text = json.dumps({name: value for name, value in members.items() if name not in ("format", "version", "sha256")})
    content = f"{text[1:]}\n".encode()
    first = f'{{"format": "tokenloom run lock", "version": 1, "sha256": "{hashlib.sha256(content).hexdigest()}",\n'
    return first.encode() + content


def in_pair(**members):
    return lambda lock: lock["sources"][0]["pairs"][0].update(members)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (in_pair(prefix="s3://me:word@host/a"), "s3://"),
        (in_pair(index_start_crc32="xyz"), "'xyz'"),
        (lambda lock: lock["sources"][0]["pairs"][0].pop("dtype"), "KeyError: 'dtype'"),
        (lambda lock: lock.pop("sources"), "KeyError: 'sources'"),
        (lambda lock: lock.update(tokenizer={}), "missing 5 required keyword-only arguments"),
    ],
)
def test_what_another_program_has_written_is_refused(change, message):
    assert parse_lock(with_members(lambda lock: None), path="run.lock").sources[1].name == "code"
    with pytest.raises(ConfigError) as caught:
        parse_lock(with_members(change), path="run.lock")
    assert message in caught.value.message


# --- runs that are stopped anywhere, changed, and gone on with on other ranks: the stream is that of the unbroken run
END = 700


def stage(number: int, samples: int, web: int, code: int) -> str:
    weights = f"weights = {{ web = {web}, code = {code} }}"
    return f'[[stages]]\nname = "{number}"\nsequence_length = 16\nsamples = {samples}\n{weights}\n'


def read(run: Run, state, *, stop: int, ranks: int, size: int, threads: int) -> tuple[list[list[int]], dict]:
    """Returns what all ranks read from a state on until they are at `stop` or beyond, and the state there."""
    found: dict[int, list[int]] = {}
    ends = []
    for rank in range(ranks):
        dataset = run.dataset()
        sampler = MegatronPretrainingSampler(len(dataset), 0, size, rank, ranks)
        loader = ThreadLoader(dataset, sampler, num_threads=threads)
        if state is not None:
            loader.load_state_dict(state)
        first = 0 if state is None else state["position"]
        for number, batch in enumerate(loader):
            begin = first + (number * ranks + rank) * size
            for row in range(size):
                found[begin + row] = [*batch["tokens"][row].tolist(), int(batch["labels"][row, -1])]
            if first + (number + 1) * ranks * size >= stop:
                break
        ends.append(loader.state_dict())
    assert all(end == ends[0] for end in ends)
    return [found[position] for position in sorted(found)], ends[0]


@pytest.mark.parametrize(
    "attempt", [0, 1, 2, *(pytest.param(number, marks=pytest.mark.slow) for number in range(3, 8))]
)
def test_the_stream_is_that_of_the_unbroken_run(tmp_path, rng, attempt):
    stages = [stage(0, END, 3, 1)]
    run = make_run(tmp_path, "".join(stages))
    stream: list[list[int]] = []
    state, position, grown, extra = None, 0, 0, 0
    while position < END - 70:
        ranks, size, threads = (int(rng.integers(1, most)) for most in (5, 7, 4))
        stop = position + int(rng.integers(1, 200))
        part, state = read(run, state, stop=min(stop, END - 40), ranks=ranks, size=size, threads=threads)
        stream += part
        position = state["position"]
        assert len(stream) == position
        match int(rng.integers(4)):
            case 0:  # other weights from here on
                begun = sum(int(each.split("samples = ")[1].split("\n")[0]) for each in stages[:-1])
                if position > begun:
                    web, code = rng.integers(1, 9, 2).tolist()
                    head, _, rest = stages.pop().partition("samples = ")
                    stages += [f"{head}samples = {position - begun}\n{rest.partition(chr(10))[2]}"]
                    stages += [stage(len(stages), END - position, web, code)]
            case 1:  # more of a source
                grown += 1
                write_pair(tmp_path / f"web-{5 + grown}", 60, first=10**6 * grown, seed=grown)
            case 2:  # a source that no stage reads yet
                extra += 1
                write_pair(tmp_path / f"other-{extra}", 30, first=10**8 + 10**6 * extra, seed=extra)
            case _:
                continue
        others = "".join(f'other{number} = "other-{number}"\n' for number in range(1, extra + 1))
        lock_run(write_toml(tmp_path, "".join(stages), sources=SOURCES + others), consumed=position)
        run = Run.open(tmp_path / "run.toml")
    assert stream == texts(run.dataset(), range(len(stream)))
    expected = {name: state[name] for name in ("run", "position", "digest")}
    assert run.dataset().run_order.order_state(len(stream)) == expected
