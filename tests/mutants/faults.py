"""Faults: small changes of one source file, found in Python's syntax tree or by regular expressions in C++."""

import ast
import difflib
import itertools
import random
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

Point = tuple[str, int, int, str]
"""Kind, start and stop of the characters to replace, replacement."""


@dataclass(frozen=True, slots=True)
class Fault:
    room: str
    file: str
    source: str
    point: Point
    number: int = 1

    @property
    def kind(self) -> str:
        return self.point[0]

    @property
    def line(self) -> int:
        return line_of(self.source, self.point)

    @property
    def changed(self) -> str:
        _, start, stop, replacement = self.point
        return self.source[:start] + replacement + self.source[stop:]

    @property
    def id(self) -> str:
        """Name for the command line, such as `order/keys.py:12:off-by-one`."""
        number = f":{self.number}" if self.number > 1 else ""
        return f"{self.file.removeprefix('src/tokenloom/')}:{self.line}:{self.kind}{number}"

    @property
    def diff(self) -> list[str]:
        lines = difflib.ndiff(self.source.splitlines(), self.changed.splitlines())
        return [line for line in lines if line[0] in "-+"]

    def is_program(self) -> bool:
        try:
            return self.room == "native" or ast.dump(ast.parse(self.changed)) != ast.dump(ast.parse(self.source))
        except SyntaxError:
            return False


def line_of(source: str, point: Point) -> int:
    return source.count("\n", 0, point[1]) + 1


def make_faults(room: str, path: Path, points: Iterable[Point]) -> Iterator[Fault]:
    source = path.read_text()
    numbers: Counter[tuple[str, int]] = Counter()
    for point in sorted(set(points), key=lambda point: point[1:]):
        key = point[0], line_of(source, point)
        numbers[key] += 1
        yield Fault(room, str(path.relative_to(ROOT)), source, point, numbers[key])


def draw_faults(faults: Iterable[Fault], *, room: str, seed: int) -> Iterator[Fault]:
    """Yields the faults of a room in random order: kinds in turn, files with fewer faults first."""
    rows = tomllib.loads(Path(__file__).with_name("equivalent.toml").read_text()).get("fault", [])
    equivalent = {(row["file"], row["kind"], row["line"]) for row in rows}
    by_kind: dict[str, list[Fault]] = {}
    for fault in faults:
        if (fault.file, fault.kind, fault.source.splitlines()[fault.line - 1].strip()) not in equivalent:
            by_kind.setdefault(fault.kind, []).append(fault)
    rng = random.Random(f"{seed} {room}")
    for kind in sorted(by_kind):
        rng.shuffle(by_kind[kind])
    num_drawn: Counter[str] = Counter()
    while any(by_kind.values()):
        for left in by_kind.values():
            if left:
                left.remove(fault := min(left, key=lambda fault: num_drawn[fault.file]))  # the first of equals
                if fault.is_program():
                    num_drawn[fault.file] += 1
                    yield fault


_LEVEL_3 = re.compile(r"/audit/|(^|[/_])(card|plot|report|words|statistics|resonance|__init__)\.py$")
_DTYPES = {"int64": "int32", "int32": "int16", "int16": "int8", "float64": "float32"}
_DTYPES |= {"uint64": "uint32", "uint32": "uint16", "uint16": "int16", "uint8": "int8"}
_EXTREMES = {"min": "max", "minimum": "maximum", "argmin": "argmax"}
_EXTREMES |= {most: least for least, most in _EXTREMES.items()}
_ANY_ORDER = {"isinstance", "issubclass", "cast", "gcd", *_EXTREMES}
"""Functions whose arguments are not swapped: nothing changes, or every call fails."""

_OPERATORS = {"<": "<=", ">": ">=", "==": "!=", "is": "is not", "in": "not in", "and": "or"}
_OPERATORS |= {after: before for before, after in _OPERATORS.items()}
_SYNCS = re.compile(r"(?<!a)sync|flush")
_CHECKS = re.compile(r"^_?(check|refuse|require|validate)(_|$)")
_WORDS = {"message", "hint", "help", "__all__", "__slots__", "logger"}
_TALKING_CALLS = re.compile(r"^(logger|logging|warnings|progress)\.|(^|\.)_?warn")
_TALKING_FUNCTIONS = re.compile(r"^(__repr__|__str__|_repr_\w+_|_?(warn|describe|plot)(_\w+)?)$")
_TALKING_RESULTS = re.compile(r"Error$|^(Markup|Figure)$")
_SKIPPED_FIELDS = {"annotation", "returns", "decorator_list"}


def find_in_room(room: str) -> list[Fault]:
    paths = sorted((ROOT / "src" / "tokenloom" / room).rglob("*.py"))
    level_1 = [path for path in paths if not _LEVEL_3.search(str(path))]
    return [fault for path in level_1 for fault in make_faults(room, path, find_points(path.read_text()))]


def find_points(source: str) -> list[Point]:
    """Returns the places of a module where a fault can be planted.

    Example:
        >>> for point in find_points("def f(x):\\n    return x + 1 if x <= 3 else min(x, 7)\\n"):
        ...     print(*point)
        inverted-condition 30 36 not (x <= 3)
        off-by-one 32 34 <
        off-by-one 21 26 x
        min-max 42 45 max
    """
    text = _Text(source)
    return [point for node, function in _walk(ast.parse(source)) for point in text.find_points(node, function)]


class _Text:
    def __init__(self, source: str) -> None:
        self.source = source
        self._bytes = source.encode()
        self._begins = [0, *itertools.accumulate(map(len, self._bytes.splitlines(keepends=True)))]

    def start(self, node: ast.AST) -> int:
        return len(self._bytes[: self._begins[node.lineno - 1] + node.col_offset].decode())

    def stop(self, node: ast.AST) -> int:
        return len(self._bytes[: self._begins[node.end_lineno - 1] + node.end_col_offset].decode())

    def of(self, node: ast.AST) -> str:
        return self.source[self.start(node) : self.stop(node)]

    def find_points(self, node: ast.AST, function: str) -> Iterator[Point]:
        match node:
            case ast.BinOp(left=left, op=ast.Add() | ast.Sub(), right=ast.Constant(value=1)):
                sign = self.source.index("+" if isinstance(node.op, ast.Add) else "-", self.stop(left))
                yield "off-by-one", self.start(node), self.stop(node), self.source[self.start(node) : sign].rstrip()
            case ast.BinOp(left=ast.Constant(value=1), op=ast.Add(), right=right):
                sign = self.source.index("+", self.stop(node.left))
                yield "off-by-one", self.start(node), self.stop(node), self.source[sign + 1 : self.stop(node)].lstrip()
            case ast.Compare(left=first, comparators=others):
                for left, right in itertools.pairwise([first, *others]):
                    yield from self._replace_operator(left, right)
            case ast.BoolOp(values=[left, right, *_]):
                yield from self._replace_operator(left, right)
            case ast.If(test=test, body=[*_, ast.Raise()]):
                yield from self._invert(test)
                yield "dropped-check", self.start(test), self.stop(test), f"({self.of(test)}) and False"
            case ast.If(test=test) | ast.IfExp(test=test) | ast.comprehension(ifs=[test]):
                yield from self._invert(test)
            case ast.Call(func=called, args=arguments):
                name = _dotted(called).rpartition(".")[2]
                if name in _EXTREMES:
                    yield "min-max", self.stop(called) - len(name), self.stop(called), _EXTREMES[name]
                for left, right in itertools.pairwise(arguments):
                    both_plain = _is_plain(left) and _is_plain(right)
                    if both_plain and _dotted(left) != _dotted(right) and name not in _ANY_ORDER:
                        swapped = self.of(right) + self.source[self.stop(left) : self.start(right)] + self.of(left)
                        yield "swapped-arguments", self.start(left), self.stop(right), swapped
            case ast.Attribute(value=ast.Name(id="np"), attr=name) if name in _DTYPES:
                yield "wrong-dtype", self.stop(node) - len(name), self.stop(node), _DTYPES[name]
            case ast.Constant(value=str(name)) if name in _DTYPES:
                yield "wrong-dtype", self.start(node), self.stop(node), f'"{_DTYPES[name]}"'
            case ast.Expr(value=ast.Call(func=called)) if _SYNCS.search(_dotted(called).rpartition(".")[2]):
                yield "missing-fsync", self.start(node), self.stop(node), "pass"
            case ast.Expr(value=ast.Call(func=called)) if _CHECKS.search(_dotted(called).rpartition(".")[2]):
                yield "dropped-check", self.start(node), self.stop(node), "pass"
            case ast.Assign(targets=[ast.Attribute()]) if function != "__init__":  # there, every use would fail
                yield "dropped-statement", self.start(node), self.stop(node), "pass"
            case ast.AugAssign():
                yield "dropped-statement", self.start(node), self.stop(node), "pass"

    def _replace_operator(self, left: ast.AST, right: ast.AST) -> Iterator[Point]:
        between = self.source[self.stop(left) : self.start(right)]
        if (found := re.search(r"[<>=!]+|\b(is|in|not|and|or)\b( not| in)?", between)) is not None:
            kind = "off-by-one" if found[0][0] in "<>" else "inverted-condition"
            yield kind, self.stop(left) + found.start(), self.stop(left) + found.end(), _OPERATORS[found[0]]

    def _invert(self, test: ast.AST) -> Iterator[Point]:
        positive = test.operand if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not) else test
        if isinstance(positive, ast.Compare) and not isinstance(positive.ops[0], (ast.Lt, ast.LtE, ast.Gt, ast.GtE)):
            return  # its operator is inverted instead
        inverted = f"not ({self.of(test)})" if positive is test else self.of(positive)
        yield "inverted-condition", self.start(test), self.stop(test), inverted


def _walk(node: ast.AST, function: str = "") -> Iterator[tuple[ast.AST, str]]:
    if _is_talk(node):
        return
    function = node.name if isinstance(node, ast.FunctionDef) else function
    yield node, function
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and name not in _SKIPPED_FIELDS:
                yield from _walk(child, function)


def _is_talk(node: ast.AST) -> bool:
    match node:
        case ast.Raise() | ast.Assert() | ast.JoinedStr() | ast.Expr(value=ast.Constant()):
            return True
        case ast.Subscript(value=ast.Name(id="NDArray")):
            return True
        case ast.FunctionDef(name=name, returns=result):
            return bool(_TALKING_FUNCTIONS.search(name) or (result and _TALKING_RESULTS.search(ast.unparse(result))))
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)) | ast.keyword(arg=name):
            return name in _WORDS
        case ast.Call(func=called):
            return bool(_TALKING_CALLS.search(_dotted(called)))
        case ast.If(test=test, body=body, orelse=[]) if all(isinstance(each, ast.Expr) for each in body):
            return all(_is_talk(each.value) for each in body) or "TYPE_CHECKING" in ast.unparse(test)
        case ast.If(test=test):
            return "TYPE_CHECKING" in ast.unparse(test)
    return False


def _is_plain(node: ast.AST) -> bool:
    return isinstance(node, (ast.Name, ast.Attribute)) and not _dotted(node).startswith(".")


def _dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


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
_ANY_ORDER_IN_NATIVE = re.compile(r"\b(?:min|max|swap)(?:<[^()]*>)?\($")


def find_in_native() -> list[Fault]:
    faults: list[Fault] = []
    for path in sorted((ROOT / "native").rglob("*.[hc]pp")):
        if path.name not in _SKIPPED_FILES:
            faults += make_faults("native", path, find_native_points(path.read_text()))
    return faults


def find_native_points(source: str) -> Iterator[Point]:
    """Yields the places of a file where a fault can be planted.

    Example:
        >>> source = 'if (size < 0) throw Error("a < b");'
        >>> for point in find_native_points(source):
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
        if left != right and not _ANY_ORDER_IN_NATIVE.search(code, max(0, match.start() - 80), match.start()):
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
