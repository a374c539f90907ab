"""The environment in which chat templates run: it can change nothing, knows no time of day, and meters what they do.

Jinja's immutable sandbox refuses access to the inside of Python. What it lets through without a limit is metered here:
loops (a call is compiled into their bodies), operators, calls, filters, comparisons, literals, and all that becomes
text.
"""

from __future__ import annotations

import functools
import json
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from tokenloom.optional import require
from tokenloom.preprocess.template_limits import Meter, foresee_filter, foresee_method, foresee_operator

BEGIN, END = "\ufdd0", "\ufdd1"
"""Noncharacters of Unicode, for use inside a program: they mark what `{% generation %}` encloses."""

_LAZY = ("map", "select", "selectattr", "reject", "rejectattr", "batch", "slice")
_SHALLOW = ("length", "count", "first", "last", "list", "items", "default", "d", "attr", "reverse", "abs", *_LAZY)
"""Filters that do not write out what they are given, nor compare it."""
_AT_RANDOM = ("random",)
_SMALL = 1 << 12  # characters that are not worth counting where nothing is made of them
_TEXTS = {str}
_STEPS_OF_A_CALL = 8  # what a macro takes, in turns of an empty loop


def sandbox() -> Any:
    """Returns the environment that chat templates expect: trimmed blocks, loop controls, generation markers.

    Nothing in it runs, or is compiled, but inside `environment.metered(meter)`.
    """
    extensions = require("jinja2.ext", extra="chat")
    environment = _environment_class()(
        trim_blocks=True, lstrip_blocks=True, extensions=[extensions.loopcontrols, _generation_extension()]
    )
    environment.finalize = environment.weighed
    environment.filters["tojson"] = _to_json
    for name in _AT_RANDOM:  # the text follows from the conversation
        del environment.filters[name]
    del environment.globals["lipsum"]
    environment.globals["raise_exception"] = _raise_exception
    for name, function in environment.filters.items():
        environment.filters[name] = _metered_filter(environment, name, function)
    return environment


def has_generation_block(environment: Any, source: str) -> bool:
    """Whether a template marks what the assistant says."""
    nodes = require("jinja2.nodes", extra="chat")
    return any(
        isinstance(block.call.node, nodes.ExtensionAttribute) and block.call.node.name == "_mark"
        for block in environment.parse(source).find_all(nodes.CallBlock)
    )


@functools.cache
def _environment_class() -> Any:
    base = require("jinja2.sandbox", extra="chat").ImmutableSandboxedEnvironment

    class Metered(base):  # type: ignore[misc, valid-type]
        intercepted_binops = frozenset({"+", "*", "**", "%"})
        code_generator_class = _code_generator_class()

        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self._here = threading.local()

        @contextmanager
        def metered(self, meter: Meter) -> Iterator[None]:
            """Meters what this thread renders inside."""
            self._here.meter = meter
            try:
                yield
            finally:
                del self._here.meter

        @property
        def meter(self) -> Meter:
            """Meter of this thread."""
            meter: Meter = self._here.meter
            return meter

        def tick(self) -> None:
            """Begins a turn of a loop."""
            self._here.meter.step()

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            foresee_operator(self.meter, operator, left, right)
            result = super().call_binop(context, operator, left, right)
            self.meter.made(result)
            return result

        def added(self, context: Any, values: tuple[Any, ...]) -> Any:
            """Returns what `+` gives, from the left; texts at once, which is nearly all there is."""
            if set(map(type, values)) == _TEXTS:
                return self._here.meter.added(values)
            return functools.reduce(functools.partial(self.call_binop, context, "+"), values)

        def call(__self, __context: Any, __called: Any, *arguments: Any, **named: Any) -> Any:
            meter = __self.meter
            meter.step(_STEPS_OF_A_CALL)
            method = getattr(__called, "__wrapped__", __called)
            owner = getattr(method, "__self__", None)
            if owner is not None:
                foresee_method(meter, owner, getattr(method, "__name__", ""), arguments, named)
            result = super().call(__context, __called, *arguments, **named)
            meter.made(result)
            return result

        def weighed(self, value: Any) -> Any:
            """Returns a value that is about to be compared or written out."""
            if type(value) is str and len(value) < _SMALL:
                return value
            if isinstance(value, (str, list, tuple, dict)) or hasattr(value, "_Namespace__attrs"):
                self.meter.weigh(value)
            return value

        def kept(self, value: Any) -> Any:
            """Returns a value that was made of a slice."""
            self.meter.made(value)
            return value

        def concat(self, pieces: Iterable[str]) -> str:
            """Returns pieces of text as one."""
            meter, found, total = self.meter, [], 0
            most = meter.most_bytes
            for piece in pieces:
                total += len(piece)
                if total > most:
                    meter.require(total)
                found.append(piece)
            text = "".join(found)
            meter.made(text)
            return text

        def joined(self, values: Iterable[Any]) -> str:
            """Returns values as one text, as `~` does."""
            return self.concat(str(self.weighed(value)) for value in values)

    return Metered


@functools.cache
def _code_generator_class() -> Any:
    nodes = require("jinja2.nodes", extra="chat")
    base = require("jinja2.compiler", extra="chat").CodeGenerator
    tick = "tick"

    class Metering(base):  # type: ignore[misc, valid-type]
        def visit_For(self, node: Any, frame: Any) -> None:
            node.body.insert(0, nodes.ExprStmt(nodes.EnvironmentAttribute(tick), lineno=node.lineno))
            if node.test is not None:  # `tick` returns nothing
                call = nodes.Call(nodes.EnvironmentAttribute(tick), [], [], None, None, lineno=node.lineno)
                node.test = nodes.And(nodes.Not(call, lineno=node.lineno), node.test, lineno=node.lineno)
            super().visit_For(node, frame)

        def visit_ExprStmt(self, node: Any, frame: Any) -> None:
            if isinstance(node.node, nodes.EnvironmentAttribute) and node.node.name == tick:
                self.writeline("environment.tick()")
                return
            super().visit_ExprStmt(node, frame)

        def visit_Call(self, node: Any, frame: Any, **options: Any) -> None:
            if isinstance(node.node, nodes.EnvironmentAttribute) and node.node.name == tick:
                self.write("environment.tick()")
                return
            super().visit_Call(node, frame, **options)

        def visit_Add(self, node: Any, frame: Any) -> None:
            values = [node.right]
            while isinstance(node.left, nodes.Add):
                node = node.left
                values.append(node.right)
            self.write("environment.added(context, (")
            for value in (node.left, *reversed(values)):
                self.visit(value, frame)
                self.write(", ")
            self.write("))")

        def visit_Concat(self, node: Any, frame: Any) -> None:
            self.write("environment.joined((")
            for value in node.nodes:
                self.visit(value, frame)
                self.write(", ")
            self.write("))")

        def visit_Operand(self, node: Any, frame: Any) -> None:
            if isinstance(node.expr, nodes.Const):
                super().visit_Operand(node, frame)
                return
            operators = require("jinja2.compiler", extra="chat").operators
            self.write(f" {operators[node.op]} environment.weighed(")
            self.visit(node.expr, frame)
            self.write(")")

        def visit_Getitem(self, node: Any, frame: Any) -> None:
            self._through("kept" if isinstance(node.arg, nodes.Slice) else None, super().visit_Getitem, node, frame)

        def visit_List(self, node: Any, frame: Any) -> None:
            self._through("weighed", super().visit_List, node, frame)

        def visit_Tuple(self, node: Any, frame: Any) -> None:
            self._through("weighed" if node.ctx == "load" else None, super().visit_Tuple, node, frame)

        def visit_Dict(self, node: Any, frame: Any) -> None:
            self._through("weighed", super().visit_Dict, node, frame)

        def _through(self, method: str | None, visit: Callable[[Any, Any], None], node: Any, frame: Any) -> None:
            if method is not None:
                self.write(f"environment.{method}(")
            visit(node, frame)
            if method is not None:
                self.write(")")

    return Metering


def _metered_filter(environment: Any, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    first = 1 if hasattr(function, "jinja_pass_arg") else 0  # before what is filtered, some take their surroundings

    @functools.wraps(function)
    def metered(*arguments: Any, **named: Any) -> Any:
        meter: Meter = environment.meter
        meter.step()
        if len(arguments) > first:
            subject = arguments[first]
            if name not in _LAZY and isinstance(subject, Iterator):
                subject = list(meter.counted(subject))
            elif name not in _SHALLOW and isinstance(subject, (list, tuple, dict)):
                meter.weigh(subject)
            else:
                meter.touch(sys.getsizeof(subject, 0))
            arguments = (*arguments[:first], subject, *arguments[first + 1 :])
            foresee_filter(meter, name, arguments[first:], named)
        result = function(*arguments, **named)
        meter.made(result)
        return result

    return metered


def _generation_extension() -> Any:
    """Returns the extension for `{% generation %}`: marks what the block renders to."""
    nodes = require("jinja2.nodes", extra="chat")
    extensions = require("jinja2.ext", extra="chat")

    class Generation(extensions.Extension):  # type: ignore[name-defined, misc]
        tags = {"generation"}  # noqa: RUF012 - Jinja's own declaration

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

        def _mark(self, caller: Any) -> str:
            return f"{BEGIN}{caller()}{END}"

    return Generation


def _to_json(value: Any, indent: int | None = None, separators: Any = None, **options: Any) -> str:
    """Not Jinja's own, which escapes for HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, **options)


def _raise_exception(message: str) -> None:
    error: type[Exception] = require("jinja2", extra="chat").TemplateError
    raise error(message)
