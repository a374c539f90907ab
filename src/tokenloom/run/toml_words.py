"""Parts of a run as lines of `run.toml`; reading these gives the same parts."""

from __future__ import annotations

from fractions import Fraction

from tokenloom.errors import ConfigError
from tokenloom.run.denial_settings import DenialSettings
from tokenloom.run.settings import SourceSettings
from tokenloom.run.stage_settings import Shares, StageSettings
from tokenloom.run.toml_file import as_key, as_text

_SUFFIXES = (("T", 12), ("B", 9), ("M", 6), ("K", 3))
_MOST_DECIMALS = 30
"""What `weight_of` reads."""


def stage_lines(stage: StageSettings) -> list[str]:
    """Returns the lines below `[[stages]]`.

    Example:
        >>> shares = (("web", Fraction(8)), ("code", Fraction(5, 2)))
        >>> stage = StageSettings(name="main", sequence_length=4096, tokens=9 * 10**11, weights=shares)
        >>> print(*stage_lines(stage), sep=chr(10))
        name = "main"
        sequence_length = 4096
        tokens = "900B"
        weights = { web = 8, code = 2.5 }

    Raises:
        ConfigError: a number has no end as a decimal, such as a third.
    """
    lines = [f"name = {as_text(stage.name)}", f"sequence_length = {stage.sequence_length}"]
    lines += [] if stage.tokens is None else [f"tokens = {tokens_text(stage.tokens)}"]
    lines += [] if stage.samples is None else [f"samples = {stage.samples}"]
    lines += [] if stage.passes is None else [f"passes = {shares_text(stage.passes)}"]
    lines += [] if stage.weights is None else [f"weights = {shares_text(stage.weights)}"]
    lines += [] if stage.on_exhausted == "stop" else [f"on_exhausted = {as_text(stage.on_exhausted)}"]
    return lines


def source_value(source: SourceSettings) -> str:
    """Returns what is behind the name of a source and `=`.

    Example:
        >>> source_value(SourceSettings(name="web", data=("data/web/*",), holdout=Fraction(1, 1000)))
        '{ data = "data/web/*", holdout = "0.1%" }'
    """
    data = [as_text(entry) for entry in source.data]
    keys = [f"data = {data[0]}" if len(data) == 1 else f"data = [{', '.join(data)}]"]
    keys += [] if source.holdout is None else [f'holdout = "{_decimal(source.holdout * 100)}%"']
    keys += [] if source.max_passes is None else [f"max_passes = {source.max_passes}"]
    return f"{{ {', '.join(keys)} }}"


def denial_lines(denial: DenialSettings) -> list[str]:
    """Returns the lines below `[[denied]]`."""
    if denial.file is not None:
        documents = as_text(denial.file)
    else:
        documents = f"[{', '.join(as_text(f'{source}:{number}') for source, number in denial.documents)}]"
    reason = [] if denial.reason is None else [f"reason = {as_text(denial.reason)}"]
    return [f"documents = {documents}", f"from = {denial.start}", *reason]


def shares_text(shares: Shares) -> str:
    """Returns weights or passes as a table of one line."""
    return f"{{ {', '.join(f'{as_key(name)} = {_decimal(number)}' for name, number in shares)} }}"


def tokens_text(tokens: int) -> str:
    """Returns a number of tokens, with a suffix where that makes it short.

    Example:
        >>> tokens_text(1_500_000_000_000), tokens_text(4097)
        ('"1.5T"', '4097')
    """
    for suffix, power in _SUFFIXES:
        if tokens >= 10**power and tokens % 10 ** (power - 3) == 0 and (power > 3 or tokens % 100 == 0):
            return f'"{_decimal(Fraction(tokens, 10**power))}{suffix}"'
    return str(tokens)


def _decimal(number: Fraction) -> str:
    """Returns a number from 0 on, exactly."""
    for decimals in range(_MOST_DECIMALS + 1):
        scaled = number * 10**decimals
        if scaled.denominator == 1:
            digits = str(scaled.numerator).zfill(decimals + 1)
            return f"{digits[:-decimals]}.{digits[-decimals:]}" if decimals else digits
    message = f"expected a number that ends as a decimal, found {number}"
    raise ConfigError(message, hint="give weights as whole numbers")
