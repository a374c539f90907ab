"""What was read and lost per source between two points of training, and where to write it."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceMeasure:
    """One source.

    Attributes:
        name: its name.
        loss: mean over its tokens with loss, as they weigh; NaN if there are none, or if the loss of one is.
        tokens: slots with loss, since the last report.
        slots: slots of its samples, padding included.
        samples: its samples; of packs, sub-samples.
        total_tokens, total_slots, total_samples: since training began.
        passes: how often it has been read, in parts too; None where that is not known.
    """

    name: str
    loss: float
    tokens: int
    slots: int
    samples: int
    total_tokens: int
    total_slots: int
    total_samples: int
    passes: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceReport:
    """All sources.

    Attributes:
        step: of training, as `reduce` was told.
        consumed_samples: position of the run, as `reduce` was told.
        sources: by their number; last, if there were any, samples of a number that has no name.
    """

    step: int | None
    consumed_samples: int | None
    sources: tuple[SourceMeasure, ...]

    def as_json(self) -> dict[str, Any]:
        """Returns plain values. A loss that is no number is a text, such as "nan": JSON has no word for it."""
        return {
            "step": self.step,
            "consumed_samples": self.consumed_samples,
            "sources": [asdict(source) | {"loss": _plain(source.loss)} for source in self.sources],
        }

    def scalars(self, prefix: str = "source") -> dict[str, float]:
        """Returns what is plotted, by names such as `source/loss/web`; no loss of a source without tokens."""
        found: dict[str, float] = {}
        for source in self.sources:
            if source.tokens:
                found[f"{prefix}/loss/{source.name}"] = source.loss
            found[f"{prefix}/tokens/{source.name}"] = source.total_tokens
            if source.passes is not None:
                found[f"{prefix}/passes/{source.name}"] = source.passes
        return found

    def _repr_html_(self) -> str:
        from tokenloom.loading.source_card import source_card

        return source_card(self)


def _plain(number: float) -> float | str:
    return number if math.isfinite(number) else str(number)


class Reports(Protocol):
    """A report that can be written: a `SourceReport`, or a `LoaderReport`."""

    def as_json(self) -> dict[str, Any]:
        """Returns plain values."""
        ...


class JsonLinesWriter:
    """Appends each report to a file as one line of JSON: those of sources, of a loader, or both to the same file.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> report = SourceReport(step=1, consumed_samples=None, sources=())
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     JsonLinesWriter(f"{folder}/sources.jsonl")(report)
        ...     Path(folder, "sources.jsonl").read_text()
        '{"step": 1, "consumed_samples": null, "sources": []}\\n'
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path: str = os.fspath(path)

    def __call__(self, report: Reports) -> None:
        """Writes one line."""
        with open(self.path, "a", encoding="utf-8") as stream:
            stream.write(json.dumps(report.as_json(), allow_nan=False) + "\n")


class ScalarWriter(Protocol):
    """TensorBoard's `SummaryWriter`, as far as it is needed."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int | None = None, /) -> None:
        """Adds a point to a plot."""
        ...


class MetricsLogger(Protocol):
    """A run of Weights & Biases, or its module, as far as it is needed."""

    def log(self, data: Mapping[str, float], *, step: int | None = None) -> Any:
        """Adds points to plots."""
        ...


def log_to_tensorboard(writer: ScalarWriter, *, prefix: str = "source") -> Callable[[SourceReport], None]:
    """Returns a hook that gives each report to TensorBoard: `source/loss/NAME`, `source/tokens/NAME` and so on."""

    def write(report: SourceReport) -> None:
        for name, value in report.scalars(prefix).items():
            writer.add_scalar(name, value, report.step)

    return write


def log_to_wandb(run: MetricsLogger, *, prefix: str = "source") -> Callable[[SourceReport], None]:
    """Returns a hook that gives each report to Weights & Biases, under the names of `log_to_tensorboard`."""

    def write(report: SourceReport) -> None:
        run.log(report.scalars(prefix), step=report.step)

    return write
