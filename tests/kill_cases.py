"""The writers of datasets on small inputs, for `tests.kill_loop`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tests.corpus.jobs import preprocess_chat, preprocess_multimodal
from tests.preprocess.corpus import make_tokenizer, word_level_json
from tests.support import StandInTokenizer, make_dataset, small_shards
from tokenloom import build_catalogue, merge_datasets, write_concatenated
from tokenloom.indexed.prefixes import sequence_counts
from tokenloom.indexed.writing.builder import IndexedDatasetBuilder
from tokenloom.indexed.writing.concatenate import ConcatenatedPart
from tokenloom.preprocess.settings import BadRecordBudget, CorpusSettings
from tokenloom.preprocess.text import preprocess_corpus
from tokenloom.storage.atomic import PendingFile
from tokenloom.tokenizers.load import load_tokenizer

KINDS = ("new", "same", "other")
"""Kinds of inputs: of the killed run, other inputs with the same number of bytes, and inputs of another size."""

_NUM_ROWS = 300
_BYTES = load_tokenizer("byte")
_WORDS = make_tokenizer(word_level_json())

Work = Callable[[Path, Path, bool], object]
"""(output folder, input folder, whether to replace existing outputs)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A writer; `older` writes the outputs that it replaces, if not `work` with other inputs."""

    work: Work
    older: Work | None = None
    multimodal: bool = False
    replaces: bool = True
    is_cache: bool = False  # its files are independent: each is right or missing


def make_inputs(folder: Path, kind: str) -> None:
    folder.mkdir()
    shift = KINDS.index(kind)
    num_rows = _NUM_ROWS + (170 if kind == "other" else 0)
    for name, offset in (("a", 0), ("b", 1000)):
        lines = []
        for row in range(num_rows):
            number = offset + 5000 + shift * 2000 + row // 2
            lines.append({"text": f"text {number:06d} " + "alpha beta " * (row % 5), "more": f"more {number:06d}"})
        if kind != "other":
            lines.insert(num_rows // 2, {"wrong": f"{shift}"})
        _write_lines(folder / f"{name}.jsonl", lines)
    talks = [
        {"messages": [{"role": "user", "content": "alpha"}, {"role": "assistant", "content": _words(row, shift)}]}
        for row in range(num_rows)
    ]
    _write_lines(folder / "chat.jsonl", talks if kind == "other" else [*talks, {"messages": shift}])
    (folder / "image.jpg").write_bytes(bytes([shift]) * 900)
    pairs = [{"text": f"{shift} {row}", "image": "image.jpg"} for row in range(num_rows // 20)]
    _write_lines(folder / "images.jsonl", pairs if kind == "other" else [*pairs, {"text": "none"}])
    for name in ("a", "b"):
        preprocess_corpus([folder / f"{name}.jsonl"], folder / name, _BYTES, _settings(), num_processes=1)
    preprocess_chat(folder / "chat.jsonl", folder / "chat", _WORDS, chat_template="chatml", skip_bad_lines=True)


def _words(row: int, shift: int) -> str:
    return " ".join(("alpha", "beta")[(row + shift >> bit) % 2] for bit in range(8))


def _write_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def _settings(**changes: Any) -> CorpusSettings:
    with small_shards():
        return CorpusSettings(bad_records=BadRecordBudget(most=None), append_eod=False, **changes)


def _pairs(inputs: Path) -> list[str]:
    return [str(inputs / f"{name}_text_document") for name in ("a", "b")]


def _builder(out: Path, inputs: Path, overwrite: bool) -> None:
    with IndexedDatasetBuilder(out / "corpus.bin", dtype=np.uint16, overwrite=overwrite) as builder:
        for line in (inputs / "a.jsonl").read_text().splitlines():
            builder.add_document(list(line.encode()), [len(line)])
        builder.finalize(out / "corpus.idx")


def _corpus(*names: str, **changes: Any) -> Work:
    def work(out: Path, inputs: Path, overwrite: bool) -> None:
        paths, options = [inputs / f"{name}.jsonl" for name in names], {"num_processes": 1, "num_workers": 1}
        preprocess_corpus(paths, out / "corpus", _BYTES, _settings(**changes), **options, overwrite=overwrite)

    return work


def _merge(**options: Any) -> Work:
    def work(out: Path, inputs: Path, overwrite: bool) -> None:
        merge_datasets(_pairs(inputs), str(out / "corpus"), overwrite=overwrite, **options)

    return work


def _merge_roles(out: Path, inputs: Path, overwrite: bool) -> None:
    merge_datasets([str(inputs / "chat")] * 2, str(out / "corpus"), overwrite=overwrite, verify=True)


def _select(out: Path, inputs: Path, overwrite: bool) -> None:
    def part(prefix: str) -> ConcatenatedPart:
        num_documents = sequence_counts([prefix])[prefix][1] - 1
        return ConcatenatedPart(prefix=prefix, kept_documents=np.arange(num_documents) % 3 > 0)

    write_concatenated([part(prefix) for prefix in _pairs(inputs)], str(out / "corpus"), overwrite=overwrite)


def _catalogue(out: Path, inputs: Path, overwrite: bool) -> None:
    build_catalogue(_pairs(inputs), str(out / "corpus"), overwrite=overwrite)


def _chat(out: Path, inputs: Path, overwrite: bool, name: str = "corpus") -> None:
    options = {"chat_template": "chatml", "skip_bad_lines": True, "num_workers": 1}
    preprocess_chat(inputs / "chat.jsonl", out / name, _WORDS, **options, overwrite=overwrite)


def _multimodal(out: Path, inputs: Path, overwrite: bool) -> None:
    path = inputs / "images.jsonl"
    preprocess_multimodal(path, out / "corpus", _BYTES, skip_bad_lines=True, num_workers=1, overwrite=overwrite)


def _cache(out: Path, inputs: Path, overwrite: bool) -> None:
    settings = {"tokenizer": StandInTokenizer(vocab_size=300), "allow_tokenizer_mismatch": True}
    dataset = make_dataset(_pairs(inputs)[0], num_samples=4000, sequence_length=8, path_to_cache=str(out), **settings)
    assert len(dataset.shuffle_index) >= 4000  # opens the index


def _counts(out: Path, inputs: Path, overwrite: bool) -> None:
    text = json.dumps(sequence_counts(_pairs(inputs)))  # like the command
    with PendingFile(out / "counts.json") as file:
        file.write(text.encode())


CASES: dict[str, Case] = {
    "builder": Case(work=_builder),
    "merge": Case(work=_merge()),
    "merge, not durable": Case(work=_merge(durable=False)),
    "merge with roles, compared": Case(work=_merge_roles),
    "merge over a catalogue": Case(work=_merge(), older=_catalogue),
    "documents of pairs": Case(work=_select),
    "catalogue": Case(work=_catalogue),
    "corpus, linked part": Case(work=_corpus("a")),
    "corpus, copied parts": Case(work=_corpus("a", "b", shard_bytes=6000)),
    "corpus, splits and keys": Case(
        work=_corpus("a", "b", keys=("text", "more"), shares={"train": 0.5, "valid": 0.3, "test": 0.2})
    ),
    "corpus, no duplicates": Case(work=_corpus("a", "b", drop_duplicates=True)),
    "corpus, a pair per file": Case(work=_corpus("a", "b", one_pair_per_file=True)),
    "corpus over chat": Case(work=_corpus("a"), older=partial(_chat, name="corpus_text_document")),
    "chat": Case(work=_chat),
    "multimodal": Case(work=_multimodal, multimodal=True),
    "index cache": Case(work=_cache, replaces=False, is_cache=True),
    "sequences per dataset": Case(work=_counts, is_cache=True),
}
