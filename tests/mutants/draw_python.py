"""Places in Python code where a fault can be planted, found in the syntax tree."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator

from tests.mutants.faults import ROOT, Fault, Point, make_faults

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
