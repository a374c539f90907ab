"""Records of a training loop: losses by position and document, and metrics as JSON lines.

A losses folder has one file per process: a header, then records of 16 bytes. Ranks never share a file, because network
file systems do not append atomically. If a process is killed, at most its last record is truncated.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tokenloom.errors import ConfigError, DatasetFormatError, DatasetNotFoundError
from tokenloom.setting_types import check_local_folder

if TYPE_CHECKING:  # recording in a training loop needs no run
    from tokenloom.run.run import Run

_FORMAT = b"tokenloom loss 1"
_RECORD = np.dtype([("position", "<i8"), ("document", "<i4"), ("loss", "<f4")])
_WHOLE = -1  # value of `document` in the record of a whole sample
_SUFFIX = ".losses"
_AT_ONCE = 1 << 20


class LossRecorder(AbstractContextManager["LossRecorder"]):
    """A recorder of losses by position, for `tokenloom trace --worst` and `tokenloom when`.

    Any number of processes can use one folder; each process writes its own file. By default, these commands read the
    folder `losses` beside `run.toml`. Records survive a crash of the process, but not of the machine (no fsync). If a
    position is recorded twice, the later loss counts.

    Example:
        >>> import tempfile
        >>> with LossRecorder(tempfile.mkdtemp()) as recorder:
        ...     recorder.append([8, 9], [310.5, 1290.0])  # the sum over the tokens of each sample
        ...     recorder.append([10, 11], [[300.5, 10.0], [250.0, 0.0]])  # or of each document in it
        ...     sorted(read_losses(recorder.path, range(9, 12)).items())
        [(9, {-1: 1290.0}), (10, {0: 300.5, 1: 10.0}), (11, {0: 250.0})]
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        check_local_folder("path", path)
        self.path: str = os.fspath(path)
        os.makedirs(self.path, exist_ok=True)
        name = f"{time.time_ns():020d}-{os.getpid()}-{secrets.token_hex(4)}{_SUFFIX}"  # later files sort last
        self._file = open(os.path.join(self.path, name), "xb")  # noqa: SIM115  see `close`
        self._file.write(_FORMAT)
        self._file.flush()

    def append(self, positions: Sequence[int] | NDArray[np.integer[Any]], losses: ArrayLike) -> None:
        """Writes the losses of samples. Of the ranks that read the same samples, exactly one must call `append`.

        Args:
            positions: integers[num_samples], such as `ThreadLoader.positions` or `Topology.positions_of`.
            losses: array or tensor [num_samples], the loss of each sample, summed over its tokens; or
                [num_samples, num_documents], the loss of each document in a sample, in order, padded with 0.
        """
        values = np.asarray(losses.detach().float().cpu() if hasattr(losses, "detach") else losses, dtype=np.float32)
        at = np.asarray(positions, dtype=np.int64)
        if at.ndim != 1 or values.ndim not in (1, 2) or len(values) != len(at):
            raise ConfigError(f"`losses`: must be of shape [{at.size}] or [{at.size}, …], got {list(values.shape)}")
        rows = values.reshape(len(at), -1)
        records = np.empty(rows.shape, dtype=_RECORD)
        records["position"] = at[:, np.newaxis]
        records["document"] = _WHOLE if values.ndim == 1 else np.arange(rows.shape[1])
        records["loss"] = rows
        kept = rows != 0
        kept[:, :1] = True  # also records samples without loss
        self._file.write(records[kept].tobytes())
        self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self.close()


Losses = dict[int, dict[int, float]]
"""Losses as {position: {index of the document in the sample: loss}}; index -1 stands for the whole sample."""


def read_losses(path: str, positions: Iterable[int]) -> Losses:
    """Returns the losses at `positions` as {position: {document: loss}}; a later record replaces an earlier record.

    `document` counts from 0 in a sample; -1 is the whole sample. Omits truncated records and unrecorded positions.

    Raises:
        DatasetNotFoundError: the folder does not exist.
        DatasetFormatError: a file in the folder has another format.
    """
    wanted = np.unique(np.fromiter(positions, dtype=np.int64))
    found: Losses = {}
    for file in _loss_files(path):
        if len(wanted):
            found.update(_losses_of(file, wanted))
    return found


def torn_files(path: str) -> list[str]:
    """Returns the files of a losses folder that end with a truncated record, because a process was killed."""
    return [file for file in _loss_files(path) if os.path.getsize(file) % _RECORD.itemsize]


def _loss_files(path: str) -> list[str]:
    try:  # oldest first
        return sorted(os.path.join(path, name) for name in os.listdir(path) if name.endswith(_SUFFIX))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DatasetNotFoundError(f"no losses folder `{path}`", hint="record losses with `LossRecorder`") from error


def _losses_of(path: str, wanted: NDArray[np.int64]) -> Losses:
    found: Losses = {}
    with open(path, "rb") as stream:
        start = stream.read(len(_FORMAT))
        if not _FORMAT.startswith(start):
            raise DatasetFormatError(f"`{path}` is not a losses file: expected header {_FORMAT!r}, found {start!r}")
        while block := stream.read(_AT_ONCE * _RECORD.itemsize):
            records = np.frombuffer(block, dtype=_RECORD, count=len(block) // _RECORD.itemsize)
            near = records[(records["position"] >= wanted[0]) & (records["position"] <= wanted[-1])]
            for position, document, loss in near[np.isin(near["position"], wanted)].tolist():
                found.setdefault(position, {})[document] = loss
    return found


def losses_folder(run: Run, named: str | None = None) -> str | None:
    """Returns `named` if given, else the folder `losses` beside `run.toml`, or None if there is no such folder."""
    folder = os.path.join(os.path.dirname(run.path), "losses")
    return named if named is not None or not os.path.isdir(folder) else folder


class SpanLoss(NamedTuple):
    """The loss of a span of a document in a sample, summed over the tokens of the span."""

    loss: float
    is_recorded: bool
    """Whether the loss of the document was recorded; else `loss` is a share of the sample's, proportional to tokens."""
    level: int = 0
    """1 if the loss per token is above 1.5 times the median over spans, 2 if above 3 times the median or not finite."""


def span_losses(run: Run, path: str, positions: Iterable[int]) -> dict[tuple[int, int], SpanLoss]:
    """Returns {(position, slot): loss} of the spans at `positions` with a recorded loss; for slots, see `SpanTable`."""
    losses = read_losses(path, positions)
    table = run.trace(sorted(losses))
    spans: dict[int, list[tuple[int, int]]] = {}
    columns = (table.positions, table.slots, np.where(table.denied, 0, table.lengths))
    for position, slot, length in zip(*(column.tolist() for column in columns), strict=True):
        spans.setdefault(position, []).append((slot, length))
    found: dict[tuple[int, int], SpanLoss] = {}
    per_token = []
    for position, of_sample in losses.items():
        num_tokens = sum(length for _, length in spans[position])
        for number, (slot, length) in enumerate(spans[position]):
            if (loss := of_sample.get(number)) is not None:
                found[position, slot] = SpanLoss(loss, is_recorded=True)
            elif length and (loss := of_sample.get(_WHOLE)) is not None:
                found[position, slot] = SpanLoss(loss * length / num_tokens, is_recorded=False)
            else:
                continue
            per_token.append(found[position, slot].loss / max(length, 1))
    usual = float(np.median([loss for loss in per_token if math.isfinite(loss)] or [0]))
    for place, loss in zip(found, per_token, strict=True):
        found[place] = found[place]._replace(level=2 - (loss <= 3 * usual) - (loss <= 1.5 * usual))
    return found


class JsonLinesWriter:
    """A writer that appends metrics of a training loop to a file, one JSON line per call; use it on one rank only.

    `tokenloom report --statistics FILE` plots the metrics over the steps; `tokenloom explore --follow FILE` plots
    the metrics while the loop writes them.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write = JsonLinesWriter(f"{folder}/train.jsonl")
        ...     write(unix_seconds=0, step=1, loss={"web": 2.5, "code": float("nan")})
        ...     Path(folder, "train.jsonl").read_text()
        '{"unix_seconds": 0, "step": 1, "loss": {"web": 2.5, "code": "nan"}}\\n'
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path: str = os.fspath(path)

    def __call__(self, **values: Any) -> None:
        """Appends a line with `values`, such as `step=1, loss=2.5`; `unix_seconds` defaults to the current time.

        A value is a number, an array or tensor with one element, a text, or a dataclass or mapping of such values.
        """
        line = {"unix_seconds": time.time()} | {name: _plain(value, name) for name, value in values.items()}
        with open(self.path, "a", encoding="utf-8") as stream:
            stream.write(json.dumps(line, allow_nan=False) + "\n")


def _plain(value: Any, name: str) -> Any:
    """Converts `value` to JSON types; NaN and infinities become text."""
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(each, f"{name}[{key!r}]") for key, each in value.items()}
    if getattr(value, "size", None) == 1 or (hasattr(value, "numel") and value.numel() == 1):
        return _plain(value.item(), name)
    message = f"`{name}`: must be a number, text, a dataclass or a mapping, got {type(value).__name__}"
    raise ConfigError(message, hint="pass one number per name, such as `loss={'web': 2.5}`")
