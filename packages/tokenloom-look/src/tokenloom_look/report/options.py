"""What a person may decide about a report."""

from __future__ import annotations

from dataclasses import dataclass

from tokenloom.numbers import check_count, checked_integer


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportOptions:
    """What a person may decide about a report; how samples are made of a pair, the target says.

    Attributes:
        num_samples_shown: how many samples and documents are shown, each.
        global_batch_size: samples of a step; None where it is not told.
        statistics: file with the statistics of loaders and storage; None for none.
        contamination: file of `tokenloom contamination --json`; None for none.
        seed: seed of what is drawn, such as the documents that are looked into.
        now: seconds since 1970, for what depends on the time, such as how long a job is silent; None for the clock.
    """

    num_samples_shown: int = 4
    global_batch_size: int | None = None
    statistics: str | None = None
    contamination: str | None = None
    seed: int = 1234
    now: float | None = None

    def __post_init__(self) -> None:
        """Checks the numbers.

        Raises:
            ConfigError: one is wrong.
        """
        check_count("num_samples_shown of a report", self.num_samples_shown)
        check_count("the seed of a report", self.seed)
        if self.global_batch_size is not None:
            checked_integer("global_batch_size", self.global_batch_size, at_least=1)
