"""Megatron's tools as commands of ours: the command line of one, as that of `tokenloom` which does the same.

Names of outputs are the tool's, and so are the bytes. What differs on purpose: documents have the order of the input
under `--partitions` too, images that come in a folder go by their names, and what is there is replaced only with
`--overwrite`.
"""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Callable, Mapping, Sequence

from tokenloom.errors import ConfigError

_THREADS_PER_PROCESS = 8

_CACHE_FLAGS = (
    *("--data-path", "--data-args-path", "--per-split-data-args-path", "--split", "--seq-length", "--sequence-length"),
    *("--train-data-path", "--valid-data-path", "--test-data-path", "--data-cache-path", "--path-to-cache", "--seed"),
    *("--num-dataset-builder-threads", "--mid-level-dataset-surplus", "--full-validation", "--sft", "--fim-data"),
    *("--multiple-validation-sets", "--per-dataset-sequences-path", "--object-storage-cache-path", "--mock-data"),
    *("--no-mmap-bin-files", "--reset-position-ids", "--reset-attention-mask", "--eod-mask-loss", "--num-workers"),
    *("--allow-ambiguous-pad-tokens", "--no-create-attention-mask-in-dataloader", "--dataloader-fast-cache-load"),
    *("--dataloader-inter-document-masking", "--dataloader-defer-npy-index-mmap", "--iteration", "--skip-train"),
    *("--train-iters", "--train-samples", "--eval-iters", "--eval-interval", "--global-batch-size", "--world-size"),
    *("--micro-batch-size", "--eval-global-batch-size", "--start-eval-at-iter", "--prepare-cache-world-size"),
    *("--tensor-model-parallel-size", "--pipeline-model-parallel-size", "--context-parallel-size", "--tokenizer"),
    *("--step-batch-size-schedule", "--phase-transition-iterations", "--tokenizer-type", "--tokenizer-model"),
    *("--vocab-file", "--merge-file", "--vocab-size", "--tokenizer-special-tokens", "--tiktoken-pattern"),
    *("--tiktoken-num-special-tokens", "--null-tokenizer-eod-id", "--tokenizer-hf-no-include-special-tokens"),
    *("--tokenizer-hf-include-special-tokens", "--tokenizer-metadata", "--trust-remote-code"),
)
"""What of the trainer's arguments decides indices; all others are about models, and how they are trained."""

Note = Callable[[str], None]


def tool_command(
    script_name: str, argv: Sequence[str], *, note: Note | None = None, trainer_is_there: bool = False
) -> list[str] | None:
    """Returns the arguments of `tokenloom` that do what a tool of Megatron does; None for any other program.

    Args:
        script_name: path of the tool, such as "tools/preprocess_data.py"; it need not be there.
        argv: its arguments.
        note: takes sentences for the user; None to drop them.
        trainer_is_there: whether Megatron's trainer can be imported and the script is there. Then `prepare_cache.py` is
            left to itself: with our datasets in the place of Megatron's it counts and names everything as the trainer.

    Raises:
        ConfigError: an argument cannot be meant.

    Example:
        >>> tool_command("tools/merge_datasets.py", ["--input", "parts", "--output-prefix", "all"])
        ['merge', '--input', 'parts', '--output-prefix', 'all']
    """
    name = os.path.basename(script_name)
    if name not in _TOOLS or (name == "prepare_cache.py" and trainer_is_there):
        return None
    return _TOOLS[name](list(argv), note or _say_nothing)


def _preprocess(argv: list[str], _note: Note) -> list[str]:
    """Returns the command for `preprocess_data.py`; its worker processes become processes of some threads each."""
    workers, partitions = _number(argv, "--workers"), _number(argv, "--partitions") or 1
    if workers is None:
        return ["preprocess", *argv]
    if workers % partitions:
        message = f"expected --workers that --partitions divide, found {workers} and {partitions}"
        raise ConfigError(message)
    processes = max(partitions, math.ceil(workers / _THREADS_PER_PROCESS))
    kept = _without(argv, {"--workers": 1, "--partitions": 1})
    return ["preprocess", *kept, "--partitions", str(processes), "--workers", str(workers)]


def _preprocess_for_nemo(argv: list[str], note: Note) -> list[str]:
    """Returns the command for NeMo's `preprocess_data_for_megatron.py`, which names a tokenizer by its library."""
    library, kind = _text(argv, "--tokenizer-library"), _text(argv, "--tokenizer-type")
    kept = _without(argv, {"--tokenizer-library": 1, "--need-pad-id": 0, "--preproc-folder": 0})
    if library == "sentencepiece":
        kept += ["--tokenizer-type", "SentencePieceTokenizer"]
    elif library == "huggingface":
        kept = _without(kept, {"--tokenizer-type": 1})
        kept += ["--tokenizer-type", "HuggingFaceTokenizer", *([] if kind is None else ["--tokenizer-model", kind])]
    elif library not in (None, "megatron"):
        message = f"expected a --tokenizer-library out of megatron, huggingface, sentencepiece, found {library!r}"
        raise ConfigError(message)
    return _preprocess(kept, note)


def _build_indexed_dataset(argv: list[str], _note: Note) -> list[str]:
    """Returns the command for `build_indexed_dataset.py`: a document on each line, and exactly the output's name."""
    names = {"--in": "--input", "--out": "--output-prefix"}
    renamed = []
    for word in argv:
        option, equals, value = word.partition("=")
        renamed.append(names.get(option, option) + equals + value)
    has_format = any(word.partition("=")[0] == "--input-format" for word in renamed)
    return ["preprocess", *renamed, *([] if has_format else ["--input-format", "text-lines"]), "--exact-prefix"]


def _preprocess_multimodal(argv: list[str], note: Note) -> list[str]:
    """Returns the command for `preprocess_mmdata.py`, which pads only what it ends."""
    if "--append-eod" not in argv and _text(argv, "--pad-length") is not None:
        note("--pad-length has no effect without --append-eod, as in Megatron's tool")
        argv = _without(argv, {"--pad-length": 1})
    return ["preprocess-multimodal", *argv]


def _prepare_cache(argv: list[str], note: Note) -> list[str]:
    """Returns the command for `prepare_cache.py`: of the trainer's arguments those that decide indices.

    Raises:
        ConfigError: one looks like one of those, misspelled.
    """
    kept: list[str] = []
    left_out: list[str] = []
    target = kept
    for word in argv:
        if word.startswith("--"):
            flag = word.partition("=")[0]
            if flag not in _CACHE_FLAGS and (near := difflib.get_close_matches(flag, _CACHE_FLAGS, n=1, cutoff=0.9)):
                message = f"nothing is called {flag}"
                raise ConfigError(message, hint=f"did you mean {near[0]}?")
            target = kept if flag in _CACHE_FLAGS else left_out
        target.append(word)
    if left_out:
        note(f"without effect on indices: {' '.join(left_out)}")
    note("a run finds these indices with the same tokenizer: tokenloom's, where Megatron's is not installed")
    return ["prepare-cache", *kept]


def _renamed(command: str) -> Callable[[list[str], Note], list[str]]:
    return lambda argv, _note: [command, *argv]


_TOOLS: Mapping[str, Callable[[list[str], Note], list[str]]] = {
    "preprocess_data.py": _preprocess,
    "preprocess_data_fast.py": _renamed("preprocess"),
    "preprocess_data_for_megatron.py": _preprocess_for_nemo,
    "preprocess_mmdata.py": _preprocess_multimodal,
    "build_indexed_dataset.py": _build_indexed_dataset,
    "merge_datasets.py": _renamed("merge"),
    "build_sequences_per_dataset.py": _renamed("sequences-per-dataset"),
    "prepare_cache.py": _prepare_cache,
}


def _text(argv: Sequence[str], name: str) -> str | None:
    """Returns the value of an option, the last one; None if it is not there."""
    found = None
    for place, word in enumerate(argv):
        option, equals, value = word.partition("=")
        if option == name:
            found = value if equals else (argv[place + 1] if place + 1 < len(argv) else None)
    return found


def _number(argv: Sequence[str], name: str) -> int | None:
    """Returns the value of an option if it is a number from 1 on; what is wrong with others, the command says."""
    text = _text(argv, name)
    return int(text) if text is not None and text.isascii() and text.isdigit() and int(text) > 0 else None


def _without(argv: Sequence[str], names: Mapping[str, int]) -> list[str]:
    """Returns arguments without some options and as many values of each."""
    kept: list[str] = []
    num_dropped = 0
    for word in argv:
        option, equals, _ = word.partition("=")
        if option in names:
            num_dropped = 0 if equals else names[option]
        elif num_dropped:
            num_dropped -= 1
        else:
            kept.append(word)
    return kept


def _say_nothing(_note: str) -> None:
    pass
