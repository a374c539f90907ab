"""What tokens there are, by a sample: tokens per byte of text, the most frequent ones, ends of documents."""

from __future__ import annotations

from collections.abc import Iterator

from tokenloom.inspect.target import Target
from tokenloom.inspect.token_sample import TokenSample, sample_tokens
from tokenloom.inspect.token_texts import decoded
from tokenloom_look.html import Cell, Markup, element, facts, joined, table
from tokenloom_look.report.options import ReportOptions
from tokenloom_look.report.section import Section
from tokenloom_look.report.words import share

_MOST_TOKENS = 15
_MUCH_OF_ONE_TOKEN = 0.2
_MUCH_OF_ONE_BYTE = 0.5
"""Of small vocabularies, where a blank is a fifth of most texts."""

_MANY_TOKENS_PER_BYTE = 0.6
"""Vocabularies of subwords need 0.2 to 0.35 for text that they were made for, and half a token for other scripts."""

_LARGE_VOCABULARY = 5000
_FEW_ENDS = 0.99


def tokens_section(target: Target, options: ReportOptions) -> Section | None:
    """Returns what tokens there are, by a sample; None where there are none.

    Raises:
        DatasetFormatError, DatasetNotFoundError, StorageError: data are damaged, gone, or cannot be read.
    """
    sample = sample_tokens(target, seed=options.seed)
    if not sample.num_tokens:
        return None
    html = [element("div", _facts(sample), _frequent(sample, target), class_="side-by-side")]
    if sample.undecodable is not None:
        html.append(element("p", f"Some stretches could not be decoded: {sample.undecodable}", class_="note"))
    return Section(id="tokens", title="The tokens", html=joined(html), findings=list(_findings(sample, target)))


def _facts(sample: TokenSample) -> Markup:
    eod = sample.special.eod
    pairs: list[tuple[str, Cell]] = [
        ("tokens looked at", f"{sample.num_tokens:,}, in stretches drawn from all of the data"),
        ("different tokens among them", len(sample.counts)),
    ]
    if (per_byte := sample.tokens_per_byte) is not None:
        low, high = sample.spread((5, 95))
        pairs.append(("tokens per byte of text", f"{per_byte:.3f}, of single stretches {low:.3f} to {high:.3f} (90%)"))
        pairs.append(("bytes of text per token", f"{1 / per_byte:.2f}"))
    if eod is not None:
        pairs.append(("share of EOD", share(sample.counts[eod], sample.num_tokens)))
        ends = f"{share(sample.num_ends_with_eod, sample.num_ends)} of {sample.num_ends:,} documents looked at"
        pairs.append(("end with EOD", ends if sample.num_ends else None))
    note = "Measured on a sample; another seed draws another one."
    return element("div", facts(pairs), element("p", note, class_="note"))


def _frequent(sample: TokenSample, target: Target) -> Markup:
    rows: list[list[Cell]] = []
    for token, count in sorted(sample.counts.items(), key=lambda each: (-each[1], each[0]))[:_MOST_TOKENS]:
        text = _text(token, sample, target)
        rows.append([None if text is None else element("code", text), f"{token}", share(count, sample.num_tokens)])
    if target.tokenizer is None:
        return table(["id", "of the sample"], [row[1:] for row in rows], caption="Most frequent tokens")
    return table(["token", "id", "of the sample"], rows, caption="Most frequent tokens")


def _text(token: int, sample: TokenSample, target: Target) -> str | None:
    """Returns a token as it is spelled, between quotes where blanks matter."""
    if token in sample.special.names:
        return sample.special.names[token]
    if target.tokenizer is None:
        return None
    try:
        return repr(decoded([token], target.tokenizer))
    except ValueError:
        return None


def _findings(sample: TokenSample, target: Target) -> Iterator[str]:
    ends, with_eod = sample.num_ends, sample.num_ends_with_eod
    if ends and with_eod < _FEW_ENDS * ends:
        some = f"Only {share(with_eod, ends)}" if with_eod else "None"
        yield f"{some} of {ends:,} documents looked at end with EOD."
    vocabulary = max(sample.counts) + 1
    much = _MUCH_OF_ONE_TOKEN if vocabulary > _LARGE_VOCABULARY else _MUCH_OF_ONE_BYTE
    token, count = sample.counts.most_common(1)[0]
    if count > much * sample.num_tokens and len(sample.counts) > 1:
        text = _text(token, sample, target)
        name = f"Token {token}" if text is None else f"Token {token}, {text},"
        yield f"{name} is {share(count, sample.num_tokens)} of all tokens looked at."
    per_byte = sample.tokens_per_byte
    if per_byte is not None and per_byte > _MANY_TOKENS_PER_BYTE and vocabulary > _LARGE_VOCABULARY:
        yield f"A byte of text takes {per_byte:.2f} tokens: was this tokenizer made for such texts?"
