"""Conversations into the text a model reads, cut where the assistant begins and ends.

A template is the tokenizer's own, in Jinja as Hugging Face has them, or `chatml`, which is built in. What of a text the
assistant said is found exactly, either by `{% generation %}` markers in the template, or by rendering turn by turn: the
text up to the assistant's turn, with the generation prompt, must begin the whole text, and so must the text up to its
end. A template for which that does not hold (one that drops reasoning from earlier turns, say) is refused.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tokenloom.errors import TokenizerError
from tokenloom.optional import require
from tokenloom.preprocess.huggingface import HuggingFaceTokenizer
from tokenloom.preprocess.records import UnusableLineError
from tokenloom.preprocess.schemas import Conversation, Message

BUILT_IN = "chatml"
_TEMPLATE_FILE = "chat_template.jinja"

# Noncharacters of Unicode, for use inside a program: they mark what `{% generation %}` encloses.
_BEGIN, _END = "\ufdd0", "\ufdd1"


@dataclass(frozen=True, slots=True)
class Part:
    """A run of a rendered conversation; `is_answer` where the assistant says it."""

    text: str
    is_answer: bool


class ChatTemplate(Protocol):
    """Renders conversations; safe from several threads, and deterministic."""

    name: str
    source: str
    """What decides the result: equal for equal templates."""

    def render(self, conversation: Conversation) -> list[Part]:
        """Returns the parts of a conversation, in order; none is empty.

        Raises:
            UnusableLineError: this conversation cannot be rendered, or its answers cannot be told from the rest.
        """


def load_chat_template(tokenizer: HuggingFaceTokenizer, template: str | None = None) -> ChatTemplate:
    """Returns a template.

    Args:
        tokenizer: whose special tokens the template may name.
        template: `chatml` for the one built in; the path of a file with a Jinja template; or None for the
            tokenizer's own: `chat_template.jinja` beside it, or `chat_template` in its `tokenizer_config.json`.

    Raises:
        TokenizerError: there is none, it cannot be read, or is not Jinja.
        MissingExtraError: it is in Jinja, and `jinja2` is not installed.
    """
    if template == BUILT_IN:
        return ChatML()
    if template is not None:
        return JinjaTemplate(template, _read(template), tokenizer)
    folder = os.path.dirname(tokenizer.path)
    path = os.path.join(folder, _TEMPLATE_FILE)
    if os.path.isfile(path):
        return JinjaTemplate(path, _read(path), tokenizer)
    source = _chosen(tokenizer.config.get("chat_template"))
    if source is None:
        message = f"tokenizer `{tokenizer.path}` has no chat template"
        hint = f"use the built-in one, {BUILT_IN!r}, or name a file with a template in Jinja"
        raise TokenizerError(message, hint=hint)
    return JinjaTemplate(f"the chat template of `{tokenizer.path}`", source, tokenizer)


def _chosen(entry: Any) -> str | None:
    """Returns the template of a configuration, which may be a list of named ones."""
    if isinstance(entry, list):
        named = {item.get("name"): item.get("template") for item in entry if isinstance(item, dict)}
        entry = named.get("default")
    return entry if isinstance(entry, str) else None


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as stream:
            return stream.read()
    except (OSError, UnicodeDecodeError) as error:
        message = f"cannot read chat template `{path}`: {error}"
        raise TokenizerError(message, hint=f"name a file, or the built-in template {BUILT_IN!r}") from error


class ChatML:
    """`<|im_start|>role`, a newline, the content and `<|im_end|>` for each turn, and a newline between turns."""

    name = BUILT_IN
    source = BUILT_IN

    def render(self, conversation: Conversation) -> list[Part]:
        parts: list[Part] = []
        prompt = ""
        for number, message in enumerate(conversation.messages, 1):
            if message["content"] is None:
                reason = f"turn {number}: the template {BUILT_IN!r} knows no tool calls, and there is no content"
                raise UnusableLineError(reason)
            prompt += f"<|im_start|>{message['role']}\n"
            said = f"{message['content']}<|im_end|>"
            if message["role"] == "assistant":
                parts += [Part(prompt, is_answer=False), Part(said, is_answer=True)]
                prompt = "\n"
            else:
                prompt += f"{said}\n"
        if conversation.messages[-1]["role"] != "assistant":
            parts.append(Part(prompt.removesuffix("\n"), is_answer=False))
        return parts


class JinjaTemplate:
    """A template as Hugging Face tokenizers have them, rendered in a sandbox that can change nothing.

    It sees `messages`, `add_generation_prompt`, `tools` and `documents` (none), and the special tokens by their names;
    it may call `raise_exception`. It knows no time of day (`strftime_now`): the text follows from the conversation.

    Args:
        name: for messages.
        source: the template.
        tokenizer: whose special tokens it may name.
    """

    def __init__(self, name: str, source: str, tokenizer: HuggingFaceTokenizer) -> None:
        self.name = name
        self.source = source
        self._special_tokens = {
            role: tokenizer.backend.id_to_token(i) for role, i in tokenizer.special_tokens_dict.items()
        }
        self._jinja = require("jinja2", extra="chat")
        environment = _environment()
        try:
            self._template = environment.from_string(source)
        except self._jinja.TemplateSyntaxError as error:
            message = f"{name} is not a Jinja template: {error.message} in line {error.lineno}"
            raise TokenizerError(message) from error
        self._has_markers = _has_generation_block(environment, source)

    def render(self, conversation: Conversation) -> list[Part]:
        messages = conversation.messages
        if self._has_markers:
            said = json.dumps(messages, ensure_ascii=False, default=str)
            if _BEGIN in said or _END in said:
                reason = "it holds the noncharacters U+FDD0 or U+FDD1, which mark generations here"
                raise UnusableLineError(reason)
            return _marked_parts(self._text(messages, prompt=False))
        return self._parts_by_turn(messages)

    def _parts_by_turn(self, messages: Sequence[Message]) -> list[Part]:
        whole = self._text(messages, prompt=False)
        parts: list[Part] = []
        done = 0
        for index, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            before = self._text(messages[:index], prompt=True)
            after = whole if index + 1 == len(messages) else self._text(messages[: index + 1], prompt=False)
            if not (done <= len(before) <= len(after) and whole.startswith(before) and whole.startswith(after)):
                reason = (
                    f"{self.name} is not stable: what it makes of the first {index + 1} turns does not begin what it "
                    f"makes of all {len(messages)}, so the assistant's part cannot be found"
                )
                raise UnusableLineError(reason)
            parts += [
                Part(whole[done : len(before)], is_answer=False),
                Part(whole[len(before) : len(after)], is_answer=True),
            ]
            done = len(after)
        return [part for part in [*parts, Part(whole[done:], is_answer=False)] if part.text]

    def _text(self, messages: Sequence[Message], *, prompt: bool) -> str:
        try:
            text: str = self._template.render(
                messages=list(messages),
                add_generation_prompt=prompt,
                tools=None,
                documents=None,
                **self._special_tokens,
            )
        except (self._jinja.TemplateError, TypeError, ValueError, LookupError, AttributeError) as error:
            reason = f"{self.name} fails: {error}"
            raise UnusableLineError(reason) from error
        return text


def _marked_parts(text: str) -> list[Part]:
    parts: list[Part] = []
    while text:
        before, begin, rest = text.partition(_BEGIN)
        answer, _, text = rest.partition(_END)
        parts += (
            [Part(before, is_answer=False), Part(answer, is_answer=True)] if begin else [Part(before, is_answer=False)]
        )
    return [part for part in parts if part.text]


def _environment() -> Any:
    """Returns the environment that chat templates expect: trimmed blocks, loop controls, generation markers."""
    sandbox = require("jinja2.sandbox", extra="chat")
    extensions = require("jinja2.ext", extra="chat")
    environment = sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[extensions.loopcontrols, _generation_extension()]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    return environment


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
            return f"{_BEGIN}{caller()}{_END}"

    return Generation


def _has_generation_block(environment: Any, source: str) -> bool:
    nodes = require("jinja2.nodes", extra="chat")
    return any(
        isinstance(block.call.node, nodes.ExtensionAttribute) and block.call.node.name == "_mark"
        for block in environment.parse(source).find_all(nodes.CallBlock)
    )


def _to_json(value: Any, indent: int | None = None, separators: Any = None, **options: Any) -> str:
    """Not Jinja's own, which escapes for HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, **options)


def _raise_exception(message: str) -> None:
    error: type[Exception] = require("jinja2", extra="chat").TemplateError
    raise error(message)
