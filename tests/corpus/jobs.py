import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from tests.preprocess.corpus import write_lines

from tokenloom.preprocess import chat, multimodal
from tokenloom.preprocess.corpus import preprocess_corpus
from tokenloom.preprocess.job import CorpusSummary
from tokenloom.preprocess.settings import BadRecordBudget, ChatSettings, CorpusSettings, MultimodalSettings


def preprocess(
    inputs: Any, prefix: Any, tokenizer: Any, *, skip_bad_records: bool = False, **options: Any
) -> CorpusSummary:
    """Calls `preprocess_corpus`, with its settings among the options; in this process unless told otherwise."""
    options.setdefault("num_processes", 1)
    if "keys" in options:
        options["keys"] = tuple(options["keys"])
    settings = _settings(CorpusSettings, options, skips=skip_bad_records)
    return preprocess_corpus(inputs, prefix, tokenizer, settings, **options)


def preprocess_chat(*arguments: Any, skip_bad_lines: bool = False, **options: Any) -> CorpusSummary:
    settings = _settings(ChatSettings, options, skips=skip_bad_lines)
    return chat.preprocess_chat(*arguments, settings, **options)


def preprocess_multimodal(*arguments: Any, skip_bad_lines: bool = False, **options: Any) -> CorpusSummary:
    settings = _settings(MultimodalSettings, options, skips=skip_bad_lines)
    return multimodal.preprocess_multimodal(*arguments, settings, **options)


def _settings(kind: type[Any], options: dict[str, Any], *, skips: bool) -> Any:
    chosen = {field.name: options.pop(field.name) for field in fields(kind) if field.name in options}
    return kind(**chosen, **({"bad_records": BadRecordBudget(most=None)} if skips else {}))


def messages(*contents: str) -> dict[str, Any]:
    return {"messages": [{"role": ("user", "assistant")[k % 2], "content": text} for k, text in enumerate(contents)]}


@contextmanager
def standard_input(data: bytes) -> Iterator[None]:
    reading, writing = os.pipe()
    os.write(writing, data)
    os.close(writing)
    kept = os.dup(0)
    try:
        os.dup2(reading, 0)
        yield
    finally:
        os.dup2(kept, 0)
        os.close(kept)
        os.close(reading)


def names_in(folder: str | os.PathLike[str]) -> set[str]:
    """Returns the names in a folder; none if it is not there, and it may go at any time."""
    with suppress(FileNotFoundError):
        return set(os.listdir(folder))
    return set()


def files_of(folder: Path) -> dict[str, bytes]:
    """Returns the files of a folder by name, manifests aside, which tell paths."""
    return {
        path.name: path.read_bytes()
        for path in sorted(folder.iterdir())
        if path.is_file() and not path.name.endswith(".manifest.json")
    }


def corpus_of(folder: Path, documents: list[str], *, num_files: int = 3) -> list[Path]:
    size = -(-len(documents) // num_files)
    return [
        write_lines(folder / f"part-{number}.jsonl", [{"text": text} for text in documents[start : start + size]])
        for number, start in enumerate(range(0, len(documents), size))
    ]


def interrupt_after(num_calls: int, *arguments: Any, job: Callable[..., object] = preprocess, **options: Any) -> None:
    """Interrupts a job at so many calls of `progress`."""
    calls = itertools.count(1)

    def interrupt(_at: object) -> None:
        if next(calls) == num_calls:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        job(*arguments, **options | {"num_workers": 1, "progress": interrupt})
