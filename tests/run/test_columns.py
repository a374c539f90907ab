"""Columns of runs: beside exactly the token they were stored with, whatever the run, its changes, ranks and stores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.datasets.fim import CharacterTokenizer
from tests.run.changed_runs import changed_run
from tests.run.folders import HEAD, STAGE, make_run, write_toml

from tokenloom.indexed import IndexedDataset, add_column
from tokenloom.loading import build_dataloader
from tokenloom.loading.thread_loader import ThreadLoader
from tokenloom.run.run import Run
from tokenloom.samplers import MegatronPretrainingSampler
from tokenloom.storage.settings import ObjectStorageSettings

SETTINGS = ObjectStorageSettings(block_bytes=1 << 13, concurrency=4, timeout_seconds=10, deadline_seconds=60)

COLUMNS = 'samples = { columns = { place = "required", next = 3, own = 4 }%s }\n'
FIM = ", fim_rate = 0.8, fim_spm_rate = 0.5, fim_extra_tokens = { prefix = 50001, middle = 50002, suffix = 50003 }"


class Placed:
    """Which values belong to each token: those of the hash of its pair, document and offset."""

    def __init__(self, folder: Path, *, without: str = "") -> None:
        tokens, places, lacks = [], [], []
        for path in sorted(folder.glob("*.idx")):
            pair = IndexedDataset(path.with_suffix(""))
            own = np.concatenate([pair[document] for document in range(len(pair))]).astype(np.int64)
            documents = np.repeat(np.arange(len(pair)), pair.sequence_lengths)
            offsets = np.concatenate([np.arange(length) for length in pair.sequence_lengths])
            hashes = (documents * 1_000_003 + offsets * 8191 + own * 2_654_435_761 + 12_345) % 2**32
            add_column(path.with_suffix(""), "place", hashes, dtype=np.uint32)
            if path.stem != without:
                add_column(path.with_suffix(""), "next", hashes, dtype=np.uint32, of="label", padding=1)
                numbers = np.arange(len(pair))
                add_column(path.with_suffix(""), "own", numbers, dtype=np.int16, kind="document", padding=-1)
            tokens.append(own)
            places.append(np.stack([hashes, documents]))
            lacks.append(np.full(len(own), path.stem == without))
        self._tokens = np.concatenate(tokens)
        assert len(np.unique(self._tokens)) == len(self._tokens)
        self._order = np.argsort(self._tokens)
        self._places, self._lacks = np.concatenate(places, axis=1), np.concatenate(lacks)

    def check(self, batch: dict[str, Any]) -> int:
        """Compares the columns of samples with their tokens; returns how many have values."""
        for side, name, row, padding, default in (
            ("tokens", "place", 0, 0, None), ("labels", "next", 0, 1, 3), ("tokens", "own", 1, -1, 4)
        ):  # fmt: skip
            tokens, found = np.asarray(batch[side]), np.asarray(batch[name])
            at = self._order.take(np.searchsorted(self._tokens, tokens, sorter=self._order), mode="clip")
            expected = self._places[row, at]
            expected = expected if default is None else np.where(self._lacks[at], default, expected)
            has_value = found != padding
            assert np.array_equal(found[has_value], expected[has_value]), name
            known = self._tokens[at] == tokens
            assert not has_value[~known].any()
            assert has_value[known & (tokens > 0)].all()  # 0 is a token, and stands where there is none
        return int(np.count_nonzero(has_value))


def by_length(dataset: Any, positions: list[int]) -> list[dict[str, Any]]:
    """Returns samples in batches, or one by one where a change of length lies between them."""
    if len({len(dataset.sample(each)["tokens"]) for each in (positions[0], positions[-1])}) == 1:
        return [dataset.batch(positions)]
    return [{name: value[None] for name, value in dataset.sample(each).items()} for each in positions]


@pytest.mark.parametrize("case", range(6))
def test_values_stand_beside_the_token_that_they_were_stored_with(tmp_path, rng, case):
    kind = ["gpt", "gpt", "fim"][case % 3]
    head = HEAD.replace("1234", str(rng.integers(1 << 31))) + f'dataset = "{kind}"\n'
    head += 'windows = "best_fit"\n' if case % 2 else ""
    head += COLUMNS % (FIM if kind == "fim" else "")
    run = changed_run(tmp_path, rng, head=head, num_changes=0 if kind == "fim" else int(rng.integers(1, 6)))
    placed = Placed(tmp_path, without="code" if case > 2 else "")
    tokenizer = CharacterTokenizer() if kind == "fim" else None
    if tokenizer is not None:
        tokenizer.vocab_size = 60_000
    run = Run.open(run.path, mmap=bool(rng.random() < 0.7), tokenizer=tokenizer)
    dataset, total = run.dataset(), min(run.num_samples, 480)
    size, seen, found = int(rng.integers(1, 9)), [], 0
    consumed = int(rng.integers(0, total // 2))
    for rank in range(size):
        sampler = MegatronPretrainingSampler(total, consumed, 6, rank, size)
        for positions in sampler:
            seen += positions
            found += sum(map(placed.check, by_length(dataset, positions)))
    assert sorted(seen) == list(range(consumed, consumed + len(seen)))
    assert found > len(seen)


@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_values_come_from_object_storage_through_loaders(bucket, tmp_path, num_workers):
    here = make_run(tmp_path, STAGE, head=HEAD + COLUMNS % "")
    placed = Placed(tmp_path, without="code")
    for name in ("web-0", "web-1", "code"):
        bucket.put_pair(str(tmp_path / name), f"data/{name}")
    (tmp_path / "away").mkdir()
    sources = f'[sources]\nweb = "{bucket.url("data/web-*")}"\ncode = "{bucket.url("data/code")}"\n'
    path = write_toml(tmp_path / "away", head=HEAD + COLUMNS % "", sources=sources)
    dataset = Run.open(path, object_storage=SETTINGS).dataset()
    sampler = MegatronPretrainingSampler(64, 0, 8, 0, 1)
    if num_workers:
        loader = build_dataloader(dataset, sampler, num_workers=num_workers)
    else:
        loader = ThreadLoader(dataset, sampler, num_threads=2)
    batches = [{name: np.asarray(value) for name, value in batch.items()} for batch in loader]
    assert sum(map(placed.check, batches)) >= 64 * 16 - 1
    expected = here.dataset().batch(range(64))
    for name in ("place", "next", "own"):
        assert np.array_equal(np.concatenate([batch[name] for batch in batches]), expected[name])
