"""Each kernel in all builds for other CPUs, which must give the same bits, and what its readable twin says.

The builds are those that an environment variable names; without it, the installed one alone is compared with the twins.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.indexed.columns import roles_of
from tests.reference import blend, chat, gpt, json_texts, packs, sentences, windows
from tests.reference.level_packing import LevelPacking

from fuzz.inputs import Bytes
from tokenloom import _native

BUILDS = "TOKENLOOM_FUZZ_BUILDS"
"""Paths of other builds of the extension, separated by colons."""

Job = Callable[[Bytes], tuple[Callable[[Any], Any], Any]]
"""Returns what makes something of an input with one build, as nested lists, and what the twin says of it."""

_TOKEN_DTYPES = {1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 8: np.uint16}


def _load(path: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"fuzzed_builds.{path.replace('.', '_')}._native", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


NATIVES = {"installed": _native} | {path: _load(path) for path in os.environ.get(BUILDS, "").split(":") if path}


def check(data: bytes) -> None:
    """Data: which kernel, and then what it takes."""
    source = Bytes(data)
    run, expected = JOBS[source.integer(0, 255) % len(JOBS)](source)
    for name, native in NATIVES.items():
        found = run(native)
        assert found == expected, f"{name} differs from the twin: {found} instead of {expected}"


def _texts(source: Bytes) -> tuple[Callable[[Any], Any], Any]:
    data, keys, most_unusual = source.rest(), ["text"], 2

    def run(native: Any) -> Any:
        found, lines = native.json_texts(data, [b"text"], most_unusual), native.line_texts(data)
        if found is not None:
            found = (
                [_as_texts(*column) for column in found[0]],
                [tuple(row) for row in found[1].reshape(-1, 3).tolist()],
            )
        return found, None if lines is None else _as_texts(*lines)

    return run, (json_texts.json_texts(data, keys, most_unusual), json_texts.line_texts(data))


def _as_texts(content: NDArray[Any], offsets: NDArray[Any]) -> list[str]:
    data, bounds = content.tobytes(), offsets.tolist()
    return [data[start:stop].decode() for start, stop in pairwise(bounds)]


def _long_text(source: Bytes) -> tuple[Callable[[Any], Any], Any]:
    """Text of any length that is UTF-8 but for a byte: what the loops for vectors look at."""
    unit = source.part()[:40].decode(errors="replace").replace("\n", " ") or "é"
    data = bytearray((unit * source.integer(1, 300)).encode())
    if source.flag() and data:
        data[source.integer(0, len(data) - 1)] = source.integer(0, 255)
    text = bytes(data)
    return lambda native: (native.line_texts(text) is None,), (json_texts.line_texts(text) is None,)


def _samples(source: Bytes) -> tuple[Callable[[Any], Any], Any]:
    """GPT samples of a small corpus, from its bytes to all arrays of a batch."""
    code = list(_TOKEN_DTYPES)[source.integer(0, 5)]
    dtype = np.dtype(_TOKEN_DTYPES[code])
    lengths = np.array(source.integers(0, 90, most=6) or [3], dtype=np.int32)
    total = int(lengths.sum())
    raw = source.take(total * dtype.itemsize)
    tokens = np.frombuffer(np.resize(np.frombuffer(raw or b"\7", dtype=np.uint8), total * dtype.itemsize), dtype=dtype)
    if dtype == np.int64:
        tokens = tokens % 2**31
    pointers = (np.cumsum(lengths, dtype=np.int64) - lengths) * dtype.itemsize
    documents = np.array(source.integers(0, len(lengths) - 1, most=10) or [0], dtype=np.int32)
    length, extra = source.integer(1, 70), source.integer(0, 1)
    settings = {"pad": source.integer(-1, 20), "eod": source.integer(-1, 20)}
    names = ("reset_position_ids", "reset_attention_mask", "eod_mask_loss", "inter_document_masking")
    options = {name: source.flag() for name in names}
    num_windows = max(0, int(lengths[documents].sum()) - extra) // length
    outputs = np.dtype(np.int32 if source.flag() else np.int64)

    def run(native: Any) -> Any:
        index = np.empty((num_windows + 1, 2), dtype=np.int32)
        native.build_sample_index(lengths, documents, length, extra, index)
        reader = native.WindowReader(
            lengths,
            documents,
            index,
            np.arange(num_windows, dtype=np.uint32),
            window_length=length,
            extra=extra,
            num_tokens=int(lengths[documents].sum()),
        )
        filler = native.GptFiller(
            sequence_length=length, extra=extra, pad_id=settings["pad"], eod_id=settings["eod"], **options
        )
        shape = (num_windows, length)
        arrays = [np.empty(shape, dtype=kind) for kind in (outputs, outputs, np.float32, outputs)]
        masked = options["inter_document_masking"]
        arrays += [
            np.empty((num_windows, length, length), dtype=bool) if not masked else None,
            np.empty((num_windows, length + 1), dtype=np.int32) if masked else None,
            np.empty(num_windows, dtype=np.int32) if masked else None,
        ]
        mapped = native.MappedSamples(reader, tokens.view(np.uint8), pointers, code)
        filler.fill(mapped, np.arange(num_windows), None, *arrays)
        return index.tolist(), [None if array is None else array.tolist() for array in arrays]

    rule = {"window_length": length, "extra": extra, "num_windows": num_windows}
    rows = windows.build_sample_index(lengths.tolist(), documents.tolist(), **rule)
    samples = [
        gpt.make_sample(
            _parts(rows[k], rows[k + 1], tokens, lengths, documents, extra),
            sequence_length=length,
            extra=extra,
            create_attention_mask=not options["inter_document_masking"],
            **settings,
            **options,
        )
        for k in range(num_windows)
    ]
    expected: list[Any] = [[sample[name] for sample in samples] for name in ("tokens", "labels", "loss_mask")]
    expected.append([sample["position_ids"] for sample in samples])
    if options["inter_document_masking"]:
        expected += [None, [sample["cu_seqlens"] for sample in samples], [sample["max_seqlen"] for sample in samples]]
    else:
        expected += [[sample["attention_mask"][0] for sample in samples], None, None]
    return run, ([list(row) for row in rows], expected)


def _parts(first: Any, last: Any, tokens: Any, lengths: Any, documents: Any, extra: int) -> list[list[int]]:
    """Returns the tokens of each document in a window, empty ones too."""
    starts = np.cumsum(lengths) - lengths
    parts = []
    for position in range(first[0], last[0] + 1):
        document = documents[position]
        begin = first[1] if position == first[0] else 0
        end = last[1] + extra if position == last[0] else lengths[document]
        parts.append(tokens[starts[document] + begin : starts[document] + end].tolist())
    return parts


def _shuffles(source: Bytes) -> tuple[Callable[[Any], Any], Any]:
    seed, count = source.integer(0, 2**32 - 1), source.integer(0, 700)
    dtype = (np.int32, np.uint32, np.int64)[source.integer(0, 2)]

    def run(native: Any) -> Any:
        values = np.arange(count, dtype=dtype)
        generator = native.Mt19937(seed)
        generator.shuffle(values)
        first = values.tolist()
        generator.shuffle(values)
        return first, values.tolist()

    random, values = np.random.RandomState(seed), np.arange(count)
    random.shuffle(values)
    first = values.tolist()
    random.shuffle(values)
    return run, (first, values.tolist())


def _blends(source: Bytes) -> tuple[Callable[[Any], Any], Any]:
    numbers = np.array(source.integers(1, 1000, most=40) or [1], dtype=np.float64)
    weights = numbers / numbers.sum()
    sizes = numbers.astype(np.int64) % 40 + 1 if source.flag() else None
    size = min(source.integer(0, 400), int(sizes.sum()) if sizes is not None else 400)
    threads, warm_up = source.integer(1, 3), source.integer(0, 50)

    def run(native: Any) -> Any:
        chosen, samples = np.empty(size, dtype=np.int16), np.empty(size, dtype=np.int64)
        native.build_blending_indices(weights, sizes, chosen, samples, threads, warm_up)
        return chosen.tolist(), samples.tolist()

    return run, blend.blending_indices(weights.tolist(), size, None if sizes is None else sizes.tolist())


def _packs(source: Bytes) -> tuple[Callable[[Any], Any], Any]:
    lengths = source.integers(0, 60, most=30)
    documents = source.integers(0, len(lengths) - 1, most=40) if lengths else []
    rule = {"sequence_length": source.integer(1, 25), "extra": source.integer(0, 1)}
    most = source.integer(1, 6)
    expected = packs.pack(lengths, documents, most=most, **rule)
    num_pieces = sum(map(len, expected))

    def run(native: Any) -> Any:
        starts = np.empty(len(expected) + 1, dtype=np.int32)
        starts[-1] = num_pieces
        pieces = np.empty((num_pieces, 2), dtype=np.int32)
        all_lengths = np.array(lengths, dtype=np.int32)
        native.pack_documents(
            all_lengths,
            np.array(documents, dtype=np.int64),
            rule["sequence_length"],
            rule["extra"],
            most,
            0,
            starts[:-1],
            pieces,
        )
        return [[tuple(piece) for piece in pieces[i:j].tolist()] for i, j in pairwise(starts.tolist())]

    return run, [[(document, start) for document, start, _ in row] for row in expected]


def _mappings(source: Bytes) -> tuple[Callable[[Any], Any], Any]:
    lengths = [source.integer(0, 60) for _ in range(source.integer(0, 30))]
    if lengths and source.flag():
        lengths[source.integer(0, len(lengths) - 1)] = 513
    boundaries = [0, *sorted(source.integers(0, len(lengths), most=6)), len(lengths)]
    options: dict[str, Any] = {
        "num_epochs": source.integer(0, 3),
        "max_num_samples": source.integer(0, 60),
        "seed": source.integer(0, 2**31),
    }
    least, short, most = source.integer(1, 3), source.integer(0, 10) / 10, source.integer(2, 80)

    def run(native: Any) -> Any:
        settings = (options["num_epochs"], options["max_num_samples"], most, short, options["seed"], least, False)
        found = native.build_mapping(np.array(lengths, dtype=np.int32), np.array(boundaries, dtype=np.int64), *settings)
        return [tuple(row) for row in np.asarray(found).tolist()]

    return run, sentences.build_mapping(
        boundaries, lengths, max_sequence_length=most, short_sequence_probability=short, min_sentences=least, **options
    )


def _conversations(source: Bytes) -> tuple[Callable[[Any], Any], Any]:
    slots = source.integers(0, 30, most=30)
    capacity = source.integer(30, 60)
    parts: list[tuple[int, int, int]] = []
    for size in source.integers(1, 9, most=8):
        start = parts[-1][1] if parts else 0
        parts.append((start, start + size, source.integer(0, 2)))
    total = parts[-1][1] if parts else 0
    available, train_on = source.integer(0, 90), source.integer(0, 2)

    def run(native: Any) -> Any:
        starts, _ = native.next_fit(np.array(slots, dtype=np.int32), capacity, 3, (-1, 0))
        place = np.zeros(1, dtype=np.int64), np.array([total], dtype=np.int32)
        roles = native.RoleParts(roles_of(parts, total), *place, 0)
        counts = np.zeros(1, dtype=np.int64)
        roles.count_trained(np.zeros(1, dtype=np.int64), np.array([min(available, total)]), train_on, counts)
        return starts.tolist(), counts.tolist()

    name = ("answers", "last_answer", "everything")[train_on]
    trained = chat.trained_tokens(parts, min(available, total), name)
    return run, ([row[0] for row in chat.next_fit(slots, capacity, 3)], [len(trained)])


def _levels(source: Bytes) -> tuple[Callable[[Any], Any], Any]:
    capacity = source.integer(1, 200)
    lengths = sorted((1 + number % capacity for number in source.integers(0, 255, most=40)), reverse=True) or [1]
    costs = [length**2 if source.flag() else length for length in [*lengths]]
    costs = sorted(costs, reverse=True)
    ranks = source.integer(1, 5)
    steps = source.integer(1, 5)
    widths = [source.integer(0, ranks) for _ in range(steps)]
    while sum(widths) > len(lengths):
        widths[widths.index(max(widths))] -= 1
    levels = sorted((source.integer(0, 2 * max(costs)) for _ in range(steps)), reverse=True)
    task: dict[str, Any] = {
        "capacity": capacity,
        "most_items": source.integer(1, 40),
        "widths": widths,
        "levels": levels,
        "bases": [level * (ranks - width) for level, width in zip(levels, widths, strict=True)],
        "num_ranks": ranks,
        "by_length": source.flag(),
        "short_first": source.integer(0, 4),
    }

    def run(native: Any) -> Any:
        pack_of = np.empty(len(lengths), dtype=np.int64)
        arrays = [np.array(task[name], dtype=np.int64) for name in ("widths", "levels", "bases")]
        items = [np.array(values, dtype=np.int64) for values in (lengths, costs)]
        fits = native.pack_to_levels(
            *items, capacity, task["most_items"], *arrays, ranks, task["by_length"], task["short_first"], pack_of
        )
        return (pack_of.tolist() if fits else None,)

    return run, (LevelPacking(lengths, costs, **task).pack_of(),)


JOBS: tuple[Job, ...] = (
    _texts,
    _long_text,
    _samples,
    _shuffles,
    _blends,
    _packs,
    _mappings,
    _conversations,
    _levels,
)


def seeds() -> Iterable[bytes]:
    generator = np.random.default_rng(1)
    for number in range(len(JOBS)):
        yield bytes([number]) + b'{"text": "a\\n\\u00e9"}\n{"id": 1, "text": "abcdefghijklmnopqrstuvwxyz \xc3\xa9"}\n'
        yield bytes([number]) + generator.integers(0, 12, size=120, dtype=np.uint8).tobytes()
        yield bytes([number]) + generator.integers(0, 255, size=300, dtype=np.uint8).tobytes()
