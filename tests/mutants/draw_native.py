"""Places in C++ code where a fault can be planted, found by regular expressions. Some do not compile."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.mutants.faults import ROOT, Fault, Point, make_faults

_SKIPPED_FILES = {"clones.hpp", "module.cpp", "modules.hpp"}

_TOKENS = re.compile(
    r"""//[^\n]* | /\*.*?\*/ | "(?:\\.|[^"\\\n])*" | (?<!\w)'(?:\\.|[^'\\\n])+' | ^[ \t]*\#(?:[^\n\\]|\\.)*""",
    re.VERBOSE | re.MULTILINE | re.DOTALL,
)
"""Comments, strings, and preprocessor lines."""

_NO_BEHAVIOUR = re.compile(
    r"""template\ <[^{;]*?>\s*\n | static_assert\(.*?\); | (?<=throw)\s[^;]*(?=;) | ^\s*using\ [^\n]*
    | ^[^\n]*(?:__builtin_prefetch|\.reserve\(|kAhead|TOKENLOOM_CLONES)[^\n]*""",
    re.VERBOSE | re.MULTILINE | re.DOTALL,
)
"""Template heads, static assertions, error texts, and code that only affects speed."""

_STATEMENT = r"(?<=[;{})])\s+(?P<place>%s)"
_REPLACED = [
    ("off-by-one", r"(?<=\s)<(?=\s)", "<="),
    ("off-by-one", r"(?<=\s)<=(?=\s)", "<"),
    ("off-by-one", r"(?<=\s)>(?=\s)", ">="),
    ("off-by-one", r"(?<=\s)>=(?=\s)", ">"),
    ("off-by-one", r" [+-] 1(?=[);,\]\s])(?! (?:<<|>>|\*|/|%))", ""),
    ("inverted-condition", r"(?<=\s)==(?=\s)", "!="),
    ("inverted-condition", r"(?<=\s)!=(?=\s)", "=="),
    ("inverted-condition", r"(?<=\s)&&(?=\s)", "||"),
    ("inverted-condition", r"(?<=\s)\|\|(?=\s)", "&&"),
    ("min-max", r"(?<=std::)min(?=[(<])", "max"),
    ("min-max", r"(?<=std::)max(?=[(<])", "min"),
    ("dropped-check", _STATEMENT % r"(?:\w+(?:\.|->|::))*check\w*\([^;]*\);", ";"),
    ("missing-fsync", _STATEMENT % r"(?:\w*(?:\.|->|::))*\w*sync\w*\([^;]*\);", ";"),
    ("dropped-statement", _STATEMENT % r"[^;{}=\s][^;{}=]* (?:[-+*/%%|&^]|<<|>>)= [^;{}]*;", ";"),
    ("dropped-statement", _STATEMENT % r"(?:\+\+|--)[\w.\[\]]+;", ";"),
    ("dropped-statement", _STATEMENT % r"(?:\w+_|[\w\[\]]+(?:\.|->)[\w.\[\]]+) = [^;{}]*;", ";"),
]
for _wide, _narrow in (("64", "32"), ("32", "16"), ("16", "8")):
    _REPLACED.append(("wrong-dtype", rf"(?<=static_cast<std::)u?int(?P<place>{_wide})(?=_t>)", _narrow))
    _REPLACED.append(("wrong-dtype", rf"(?<=[;{{}}])\s+(?:const )?std::u?int(?P<place>{_wide})(?=_t \w+ = )", _narrow))
_REGEXES = [(kind, re.compile(regex), replacement) for kind, regex, replacement in _REPLACED]

_NAME = r"[A-Za-z_]\w*(?:(?:\.|->|::)\w+)*"
_ARGUMENTS = re.compile(rf"(?:(?<=\()|(?<=, ))(?=(?P<left>{_NAME})(?P<between>,\s+)(?P<right>{_NAME})[,)])")
_ANY_ORDER = re.compile(r"\b(?:min|max|swap)(?:<[^()]*>)?\($")


def find_in_native() -> list[Fault]:
    faults: list[Fault] = []
    for path in sorted((ROOT / "native").rglob("*.[hc]pp")):
        if path.name not in _SKIPPED_FILES:
            faults += make_faults("native", path, find_points(path.read_text()))
    return faults


def find_points(source: str) -> Iterator[Point]:
    """Yields the places of a file where a fault can be planted.

    Example:
        >>> source = 'if (size < 0) throw Error("a < b");'
        >>> for point in find_points(source):
        ...     print(*point)
        off-by-one 9 10 <=
        inverted-condition 4 12 !(size < 0)
        dropped-check 4 12 (size < 0) && false
    """
    code = _NO_BEHAVIOUR.sub(_blank, _TOKENS.sub(_blank, source))
    for kind, regex, replacement in _REGEXES:
        for match in regex.finditer(code):
            start, stop = match.span("place" if "place" in regex.groupindex else 0)
            yield kind, start, stop, replacement
    for match in _ARGUMENTS.finditer(code):
        left, between, right = match.group("left", "between", "right")
        if left != right and not _ANY_ORDER.search(code, max(0, match.start() - 80), match.start()):
            yield "swapped-arguments", match.start(), match.start("right") + len(right), right + between + left
    for match in re.finditer(r"\bif \(", code):
        yield from _conditions(source, code, match.end())


def _conditions(source: str, code: str, start: int) -> Iterator[Point]:
    stop, depth = start, 1
    while depth:
        depth += {"(": 1, ")": -1}.get(code[stop], 0)
        stop += 1
    stop -= 1
    throws = re.match(r"\)\s*\{?\s*throw\b", code[stop:])
    if ";" in code[start:stop]:  # after a declaration
        start += code[start:stop].rindex(";") + 1
        start += len(code[start:stop]) - len(code[start:stop].lstrip())
    elif re.match(r"(?:const )?[\w:*& ]+ = ", code[start:stop]):
        return  # a declaration is the condition
    condition = source[start:stop]
    if len(re.findall(r" (?:==|!=|&&|\|\|) ", code[start:stop])) != 1 or re.search(r"&&|\|\|", code[start:stop]):
        yield "inverted-condition", start, stop, f"!({condition})"  # else its operator is inverted
    if throws:
        yield "dropped-check", start, stop, f"({condition}) && false"


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match[0])
