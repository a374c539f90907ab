"""The sweep: all code points, in several contexts, by `gigatoken` and by a tokenizer's own library.

    python tools/sweep_tokenizers.py

compares the installed versions under every set of rules that `gigatoken` supports, and writes the certificates of this
pair of versions into `src/tokenloom/tokenizers/certificates.json`. Minutes of one core; needed when a version of one of
the libraries changes.
"""

from __future__ import annotations

import base64
import json
import sys
import time
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from tokenloom.errors import TokenizerError
from tokenloom.tokenizers.engines import (
    TABLE,
    Certificate,
    Engine,
    GigatokenEngine,
    installed_libraries,
    read_table,
)
from tokenloom.tokenizers.huggingface import HuggingFaceTokenizer
from tokenloom.tokenizers.tiktoken_ranks import PATTERNS, TiktokenDescription, TiktokenTokenizer

# Beside a letter, a capital, a digit, punctuation, white space, an apostrophe, itself; and between two marks, which
# normalisation sorts by their combining classes.
_CONTEXTS = ("a{}a", "A{}A", "1{}1", "!{}!", " {} ", "'{}a", "{}{}", "\r{}\r", "\u0345{}\u0334")
_NEIGHBOURS = b"aA1! '\r\n"
_LEADING, _CONTINUING = range(0xC2, 0xF5), range(0x80, 0xC0)
_GROUP = 64
_BATCH = 256
_SURROGATES = range(0xD800, 0xE000)

# Letters that are new in a version of Unicode.
_NEW_LETTERS = {"15.0": 0x11F04, "15.1": 0x2EBF0, "16.0": 0x10D4A, "17.0": 0x323B0}

# Of Unicode 16, which `unicodedata` does not know before Python 3.14.
_NEW_COMPOSING_PAIRS = (
    (0x105D2, 0x307), (0x105DA, 0x307), (0x11382, 0x113C9), (0x11384, 0x113BB), (0x1138B, 0x113C2), (0x11390, 0x113C9),
    (0x113C2, 0x113C2), (0x113C2, 0x113B8), (0x113C2, 0x113C9), (0x1611E, 0x1611E), (0x1611E, 0x16129),
    (0x1611E, 0x1611F), (0x16129, 0x1611F), (0x1611E, 0x16120), (0x16121, 0x1611F), (0x16122, 0x1611F),
    (0x16121, 0x16120), (0x16D67, 0x16D67), (0x16D63, 0x16D67), (0x16D69, 0x16D67),
)  # fmt: skip

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LLAMA3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_QWEN2 = _LLAMA3.replace("{1,3}", "")
_QWEN35 = (
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_O200K = PATTERNS["o200k"]
_NEMOTRON = _O200K.replace(f"{_CONTRACTIONS}?", "").replace("{1,3}", "")
_GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_DEEPSEEK = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^CRLF\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"""
    r""" ?[\p{P}\p{S}]+[CRLF]*|\s*[CRLF]+|\s+(?!\S)|\s+""",
)
_EXPRESSIONS: dict[str, tuple[str, ...]] = {
    "gpt2": (),
    "gpt2-split": (_GPT2,),
    "llama3": (_LLAMA3,),
    "qwen2": (_QWEN2,),
    "qwen3.5": (_QWEN35,),
    "llama3-line": (_LLAMA3.replace(r"\s*[\r\n]+", r"\s*[\r\n]"),),
    "cl100k": (PATTERNS["cl100k"] + "+",),
    "o200k": (_O200K,),
    "nemotron": (_NEMOTRON,),
    "deepseek-v3": tuple(each.replace("CRLF", "\r\n") for each in _DEEPSEEK),
}
_NORMALISED = ("gpt2", "llama3", "qwen2", "qwen3.5")
"""Expressions that published tokenizers use with NFC, too."""


def sweep(tokenizer: HuggingFaceTokenizer | TiktokenTokenizer, *, name: str, code_points: Sequence[int]) -> Certificate:
    """Compares `gigatoken` with a tokenizer's own library on code points.

    Args:
        tokenizer: one that `swept_tokenizers` makes, whose merges show where a text was cut.
        name: name of its rules.
        code_points: what to compare, rising; no surrogates.

    Raises:
        TokenizerError: `gigatoken` does not support the rules.
        ValueError: they differ on ASCII, which is more than another version of Unicode.
    """
    fast, truth = GigatokenEngine(tokenizer), tokenizer
    differing: list[int] = []
    for batch in _pieces(list(_pieces(code_points, _GROUP)), _BATCH):
        for group in _differing(fast, truth, batch):
            alone = [number for (number,) in _differing(fast, truth, [[each] for each in group])]
            differing += alone or group
    swept = set(code_points)
    pairs = [pair for pair in _composing_pairs() if max(pair) in swept]
    differing += [max(pair) for pair in _differing(fast, truth, pairs, contexts=("{}",), separator="")]
    differing = sorted(set(differing))
    if differing and differing[0] < 0x80:
        message = f"{name}: `gigatoken` and `{truth.engine_name}` cut texts with {chr(differing[0])!r} differently"
        raise ValueError(message)
    return Certificate(
        name=name,
        libraries=installed_libraries(truth.engine_name),
        unicode=(_unicode(fast), _unicode(truth)),
        rules=tokenizer.cutting_rules,
        ranges=tuple(_ranges(differing)),
    )


@cache
def _composing_pairs() -> list[tuple[int, int]]:
    """Returns the pairs that NFC makes one code point of."""
    fields = [unicodedata.decomposition(chr(each)).split() for each in range(0x30000)]
    known = [(int(each[0], 16), int(each[1], 16)) for each in fields if len(each) == 2 and each[0][0] != "<"]
    return [*known, *_NEW_COMPOSING_PAIRS]


def _differing(
    fast: Engine,
    truth: Engine,
    groups: Sequence[Sequence[int]],
    *,
    contexts: Sequence[str] = _CONTEXTS,
    separator: str = "\n",
) -> Iterator[Sequence[int]]:
    """Yields the groups of code points for which two engines give different ids."""
    texts = [
        separator.join(context.replace("{}", chr(each)) for each in group for context in contexts) for group in groups
    ]
    for group, first, second in zip(
        groups, fast.encode_texts(texts).rows(), truth.encode_texts(texts).rows(), strict=True
    ):
        if not np.array_equal(first, second):
            yield group


def _pieces(items: Sequence[Any], size: int) -> Iterator[Any]:
    return (items[start : start + size] for start in range(0, len(items), size))


def _ranges(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yields [start, stop) of the runs of rising numbers."""
    start = previous = None
    for number in numbers:
        if previous is None or number != previous + 1:
            if start is not None and previous is not None:
                yield start, previous + 1
            start = number
        previous = number
    if start is not None and previous is not None:
        yield start, previous + 1


def _unicode(engine: Engine) -> str:
    """Returns the newest version of Unicode of which an engine knows a new letter, by whether `a` stays with it."""
    known = [name for name, letter in _NEW_LETTERS.items() if len(engine.encode_texts([f"a{chr(letter)}"]).tokens) == 4]
    return known[-1] if known else "before 15.0"


def _pairs() -> list[bytes]:
    """Returns the two bytes of each merge: at every boundary of a context, and nowhere inside a character."""
    ends, starts = [*_NEIGHBOURS, *_CONTINUING], [*_NEIGHBOURS, *_LEADING]
    return [bytes([end, start]) for end in ends for start in starts if end >= 0x80 or start >= 0x80]


def _hugging_face(expressions: Sequence[str], *, normalizer: str | None = None) -> HuggingFaceTokenizer:
    letters = _byte_letters()
    tokens = [*letters, *(letters[pair[0]] + letters[pair[1]] for pair in _pairs())]
    splits = [
        {"type": "Split", "pattern": {"Regex": each}, "behavior": "Isolated", "invert": False} for each in expressions
    ]
    bytes_ = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": not splits}
    content: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None if normalizer is None else {"type": normalizer},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splits, bytes_]} if splits else bytes_,
        "model": {
            "type": "BPE",
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": [[letters[pair[0]], letters[pair[1]]] for pair in _pairs()],
        },
    }
    return HuggingFaceTokenizer("sweep/tokenizer.json", json.dumps(content).encode(), config={})


def _byte_letters() -> list[str]:
    """Returns how byte-level BPE spells each byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def _tiktoken(pattern: str) -> TiktokenTokenizer:
    tokens = [*(bytes([byte]) for byte in range(256)), *_pairs()]
    lines = [b"%s %d" % (base64.b64encode(token), rank) for rank, token in enumerate(tokens)]
    description = TiktokenDescription(pattern=pattern, special_tokens={})
    return TiktokenTokenizer("sweep/ranks.tiktoken", b"\n".join(lines), description)


def swept_tokenizers() -> dict[str, Callable[[], HuggingFaceTokenizer | TiktokenTokenizer]]:
    """Returns what makes a tokenizer for each set of rules that cut texts, by the name of the rules."""
    found: dict[str, Callable[[], HuggingFaceTokenizer | TiktokenTokenizer]] = {}
    for name, expressions in _EXPRESSIONS.items():
        found[name] = partial(_hugging_face, expressions)
        if name in _NORMALISED:
            found[f"{name}, NFC"] = partial(_hugging_face, expressions, normalizer="NFC")
    return found | {f"{name}, tiktoken": partial(_tiktoken, PATTERNS[name]) for name in ("r50k", "cl100k", "o200k")}


def write_table(certificates: Sequence[Certificate]) -> None:
    """Writes the certificates that tokenloom ships."""
    rows = [json.dumps(_to_row(each)) for each in certificates]
    TABLE.write_text("[\n" + ",\n".join(rows) + "\n]\n", encoding="utf-8")


def _to_row(certificate: Certificate) -> dict[str, Any]:
    ends = [(start, stop - 1) for start, stop in certificate.ranges]
    return {
        "name": certificate.name,
        "libraries": certificate.libraries,
        "unicode": certificate.unicode,
        "rules": certificate.rules,
        "ranges": [f"{first:X}" if first == last else f"{first:X}-{last:X}" for first, last in ends],
    }


def main() -> None:
    """Certifies the installed versions, and prints a row of a table for each set of rules."""
    code_points = [each for each in range(0x110000) if each not in _SURROGATES]
    found: list[Certificate] = []
    for name, make in swept_tokenizers().items():
        start = time.monotonic()
        try:
            certificate = sweep(make(), name=name, code_points=code_points)
        except (TokenizerError, ValueError) as error:
            print(f"not certified: {name}: {error}", file=sys.stderr)
            continue
        found.append(certificate)
        seconds = time.monotonic() - start
        print(f"{name}: {certificate.num_code_points} in {len(certificate.ranges)} ranges, {seconds:.0f} s", flush=True)
    certified = {each.libraries for each in found}
    write_table([*(each for each in read_table() if each.libraries not in certified), *found])


if __name__ == "__main__":
    main()
