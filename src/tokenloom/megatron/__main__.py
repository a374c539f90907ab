"""`python -m tokenloom.megatron SCRIPT …`: runs a Megatron program with tokenloom's data modules."""

from __future__ import annotations

import builtins
import importlib.util
import math
import os
import runpy
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import SourceFileLoader
from itertools import takewhile
from types import ModuleType

from tokenloom.errors import ConfigError
from tokenloom.megatron.installation import install
from tokenloom.storage.secrets import redacted

_USAGE = """\
usage: python -m tokenloom.megatron [--unchecked] [--report] [--as-is] SCRIPT [ARGUMENT …]
       python -m tokenloom.megatron [--unchecked] [--report] -m MODULE [ARGUMENT …]
       torchrun [OPTION …] -m tokenloom.megatron SCRIPT [ARGUMENT …]

Runs an unmodified Megatron program with tokenloom's data modules in place of Megatron's. Megatron's data tools
(tools/preprocess_data.py, merge_datasets.py, …) are replaced by tokenloom commands with the same arguments and
outputs; the tool's file need not exist.

  --as-is      run a data tool itself, as an ordinary script, instead of the tokenloom command
  --unchecked  accept a megatron-core version that tokenloom was not tested against
  --report     print the list of replaced modules to standard error, then run the program
"""


def main(arguments: list[str]) -> None:
    """Calls `install` and runs a program as `python ARGUMENTS` would; replaces a data tool by a tokenloom command."""
    options = [*takewhile(("--unchecked", "--report", "--as-is", "-h", "--help").__contains__, arguments)]
    arguments = arguments[len(options) :]
    if "-h" in options or "--help" in options:
        sys.stdout.write(_USAGE)
        return
    is_module = arguments[:1] == ["-m"]
    program = arguments[1:] if is_module else arguments
    if not program or program[0].startswith("-"):
        sys.exit(f"{_USAGE}\nno script given{f', got option {program[0]}' if program else ''}")
    if not is_module:
        if "--as-is" not in options:
            _run_tool(program[0], program[1:])
        if not os.path.exists(program[0]):
            sys.exit(f"no file `{program[0]}`")
        if not sys.flags.safe_path:  # like `python PATH`; `install` looks for Megatron in this folder first
            sys.path[0] = os.path.dirname(os.path.realpath(program[0]))
    try:
        report = install(unchecked="--unchecked" in options)
    except ConfigError as error:
        sys.exit(str(error))
    if "--report" in options:
        sys.stderr.write(f"{report}\n")
    sys.argv[:] = program
    if is_module:
        runpy.run_module(program[0], run_name="__main__", alter_sys=True)
    else:
        _run_script(program[0])


def _run_tool(path: str, arguments: list[str]) -> None:
    """Replaces this process with the tokenloom command for a Megatron tool; returns if `path` is not a tool."""
    has_trainer = os.path.exists(path) and _has_trainer(path)
    notes: list[str] = []
    try:
        command = tool_command(path, arguments, note=notes.append, has_trainer=has_trainer)
    except ConfigError as error:
        sys.exit(str(error))
    if command is None:
        return
    for note in [f"{path}: tokenloom {' '.join(command)}", *notes]:
        sys.stderr.write(f"{redacted(note)}\n")
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", "tokenloom", *command])


def _has_trainer(path: str) -> bool:
    """Returns whether `megatron.training` is installed, or is in the checkout that contains the script `path`."""
    checkout = os.path.join(os.path.dirname(os.path.realpath(path)), os.pardir)
    if os.path.isdir(os.path.join(checkout, "megatron", "training")):
        return True
    try:
        return importlib.util.find_spec("megatron.training") is not None
    except ImportError:
        return False


def _run_script(path: str) -> None:
    """Runs a file as `python PATH` would; the module stays `__main__`, for threads and exit handlers."""
    if os.path.isdir(path) or path.endswith((".pyc", ".pyz", ".zip")):
        runpy.run_path(path, run_name="__main__")
        return
    full = os.path.abspath(path)
    loader = SourceFileLoader("__main__", full)
    main = ModuleType("__main__")
    main.__dict__.update(
        __file__=full, __loader__=loader, __spec__=None, __package__=None, __cached__=None, __builtins__=builtins
    )
    code = compile(loader.get_data(full), full, "exec", dont_inherit=True)
    sys.modules["__main__"] = main
    exec(code, main.__dict__)


# --- tokenloom commands for Megatron's tools --------------------------------------------------------------------------
#
# Output names and bytes equal those of Megatron's tools. Intended differences: `--partitions` keeps the input order,
# images of a folder are sorted by name, and existing outputs are replaced only with `--overwrite`.

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
"""The arguments of Megatron's trainer that affect index caches."""

Note = Callable[[str], None]


def tool_command(
    script_name: str, argv: Sequence[str], *, note: Note | None = None, has_trainer: bool = False
) -> list[str] | None:
    """Returns the arguments of the `tokenloom` command that replaces a Megatron tool; None for other scripts.

    Calls `note` with each message for the user. With `has_trainer` (the script and Megatron's trainer exist), returns
    None for `prepare_cache.py`, too, because that script itself uses the trainer's sample counts and cache names.

    Example:
        >>> tool_command("tools/merge_datasets.py", ["--input", "parts", "--output-prefix", "all"])
        ['merge', '--input', 'parts', '--output-prefix', 'all']
    """
    name = os.path.basename(script_name)
    if name not in _TOOLS or (name == "prepare_cache.py" and has_trainer):
        return None
    return _TOOLS[name](list(argv), note or (lambda _: None))


def _extract(argv: Sequence[str], *options: str, flags: Sequence[str] = ()) -> tuple[dict[str, str], list[str]]:
    """Returns ({name: value} of the given options and flags that `argv` contains, list of all other arguments)."""
    values, kept, words = {}, [], iter(argv)
    for word in words:
        option, equals, value = word.partition("=")
        if option in options:
            values[option] = value if equals else next(words, "")
        elif word in flags:
            values[word] = word
        else:
            kept.append(word)
    return values, kept


def _preprocess(argv: list[str], _note: Note) -> list[str]:
    """Returns the command that replaces `preprocess_data.py`, with up to `_THREADS_PER_PROCESS` workers per process."""
    values, kept = _extract(argv, "--workers", "--partitions")
    numbers = values.get("--workers", ""), values.get("--partitions", "1")
    if not all(map(str.isdecimal, numbers)):
        return ["preprocess", *argv]  # the command's parser reports the error
    workers, partitions = int(numbers[0]), int(numbers[1]) or 1
    if workers % partitions:
        raise ConfigError(f"--workers: must be a multiple of --partitions {partitions}, got {workers}")
    processes = max(partitions, math.ceil(workers / _THREADS_PER_PROCESS))
    return ["preprocess", *kept, "--partitions", str(processes), "--workers", str(workers)]


def _preprocess_for_nemo(argv: list[str], note: Note) -> list[str]:
    """Returns the command that replaces NeMo's `preprocess_data_for_megatron.py`; converts `--tokenizer-library`."""
    values, kept = _extract(argv, "--tokenizer-library", flags=("--need-pad-id", "--preproc-folder"))
    library = values.get("--tokenizer-library")
    if library == "sentencepiece":
        kept += ["--tokenizer-type", "SentencePieceTokenizer"]
    elif library == "huggingface":
        values, kept = _extract(kept, "--tokenizer-type")
        kept += ["--tokenizer-type", "HuggingFaceTokenizer"]
        kept += ["--tokenizer-model", values["--tokenizer-type"]] if values else []
    elif library not in (None, "megatron"):
        message = f"unknown --tokenizer-library {library!r}"
        raise ConfigError(message, hint="choose megatron, huggingface or sentencepiece")
    return _preprocess(kept, note)


def _build_indexed_dataset(argv: list[str], _note: Note) -> list[str]:
    """Returns the command that replaces `build_indexed_dataset.py`; each line is a document, the prefix is exact."""
    names = {"--in": "--input", "--out": "--output-prefix"}
    words = [word.partition("=") for word in argv]
    renamed = [names.get(option, option) + equals + value for option, equals, value in words]
    has_format = any(option == "--input-format" for option, _, _ in words)
    return ["preprocess", *renamed, *([] if has_format else ["--input-format", "text-lines"]), "--exact-prefix"]


def _preprocess_multimodal(argv: list[str], note: Note) -> list[str]:
    """Returns the command that replaces `preprocess_mmdata.py`. Both commands pad only if `--append-eod` is given."""
    values, without_padding = _extract(argv, "--pad-length", flags=("--append-eod",))
    if "--pad-length" in values and "--append-eod" not in values:
        note("--pad-length has no effect without --append-eod, as in Megatron's tool")
        argv = without_padding
    return ["preprocess-multimodal", *argv]


def _prepare_cache(argv: list[str], note: Note) -> list[str]:
    """Returns the command that replaces `prepare_cache.py`, with only the arguments that affect index caches."""
    kept: list[str] = []
    others: list[str] = []
    target = kept
    for word in argv:
        if word.startswith("--"):
            target = kept if word.partition("=")[0] in _CACHE_FLAGS else others
        target.append(word)
    if others:
        note(f"arguments without effect on the index cache: {' '.join(others)}")
    note("a run uses this cache only with this tokenizer class: Megatron's if Megatron is installed, else tokenloom's")
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


if __name__ == "__main__":
    main(sys.argv[1:])
