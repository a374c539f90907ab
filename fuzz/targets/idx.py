"""An index and its tokens, in every way they are read: mapped, by position, one sequence, many, all, by `verify`."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import numpy as np
from tests.indexed.pairs import pair_bytes, write_pair

from fuzz.inputs import Bytes, Scratch, join
from tokenloom.errors import TokenloomError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.verify import index_problems, verify_dataset

_SCRATCH = Scratch()


def check(data: bytes) -> None:
    """Data: whether modes are expected, the index with its length before it, the tokens."""
    source = Bytes(data)
    multimodal = source.flag()
    _SCRATCH.write("pair.idx", source.part())
    _SCRATCH.write("pair.bin", source.rest())
    prefix = str(_SCRATCH.path / "pair")
    report = None
    with suppress(TokenloomError):
        report = verify_dataset(prefix, multimodal=multimodal)
    found = [_read(prefix, multimodal=multimodal, mmap=mmap) for mmap in (True, False)]
    assert found[0] == found[1], "mapped and positional reading differ"
    if report is not None and report.ok and found[0] is not None:
        one_by_one, gathered, sliced, rest = found[0]
        assert one_by_one == gathered == sliced, "a sound pair reads differently in different ways"
        assert rest == [] or None not in rest


def _read(prefix: str, *, multimodal: bool, mmap: bool) -> list[Any] | None:
    """Returns what each way of reading gives, None in place of what is refused."""
    with suppress(TokenloomError):
        dataset = IndexedDataset(prefix, multimodal=multimodal, mmap=mmap)
        repr(dataset)
        with suppress(TokenloomError):
            dataset.statistics()
        if mmap:
            list(index_problems(dataset))
        count = min(len(dataset), 20)
        return [
            _tried(lambda: [_plain(dataset[row], multimodal=multimodal) for row in range(count)]),
            _tried(lambda: _gather(dataset, count)),
            _tried(lambda: [tokens.tobytes() for tokens in (dataset[:count][0] if multimodal else dataset[:count])]),
            [
                _tried(lambda row=row: dataset.get(row, offset=0, length=1 if dataset.sequence_lengths[row] else 0))
                is not None
                for row in range(count)
            ],
        ]
    return None


def _tried(read: Any) -> Any:
    with suppress(TokenloomError, IndexError):
        return read()
    return None


def _plain(found: Any, *, multimodal: bool) -> bytes:
    tokens: np.ndarray[Any, Any] = found[0] if multimodal else found
    return tokens.tobytes()


def _gather(dataset: IndexedDataset, count: int) -> list[bytes]:
    lengths = dataset.sequence_lengths[:count].astype(np.int64)
    tokens = dataset.gather(np.arange(count), np.zeros(count, dtype=np.int64), lengths)
    return [part.tobytes() for part in np.split(tokens, np.cumsum(lengths)[:-1])] if count else []


def seeds() -> Iterable[bytes]:
    corpora = ([[[1, 2], [3]], [], [[4], []]], [[list(range(9))]], [], [[[7, 8, 9]], [[1], [2]]])
    for number, (corpus, dtype) in enumerate(zip(corpora, (np.int32, np.uint16, np.uint8, np.int64), strict=True)):
        prefix = write_pair(_SCRATCH.path / f"seed{number}", corpus, dtype=dtype, multimodal=number % 2 == 0)
        tokens, index = pair_bytes(prefix)
        yield bytes([number % 2 == 0]) + join(index, tokens)
