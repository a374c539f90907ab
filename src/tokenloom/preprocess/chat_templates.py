"""Renders conversations as texts, and cuts each text at the start and the end of each answer.

A template is the tokenizer's own Jinja template, a Jinja file, or the built-in `chatml`. Answers are located by the
`{% generation %}` markers of the template, or by rendering turn by turn: the turns before an assistant turn (with the
generation prompt) and the turns up to and including that turn must both render as prefixes of the whole text. A
template that breaks this rule, for example by dropping reasoning from earlier turns, is an error.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tokenloom.errors import TokenizerError
from tokenloom.inputs.records import UnusableLineError, checked_text, refuse_record
from tokenloom.optional import require
from tokenloom.preprocess.schemas import Conversation
from tokenloom.tokenizers.text_tokenizer import in_words, shortened

if TYPE_CHECKING:
    from tokenloom.tokenizers.huggingface import HuggingFaceTokenizer

BUILT_IN = "chatml"
_TEMPLATE_FILE = "chat_template.jinja"
_BEGIN, _END = "\ufdd0", "\ufdd1"
"""Unicode noncharacters that mark the content of `{% generation %}` blocks in the rendered text."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a rendered conversation; `is_answer` is True for a part of an assistant turn."""

    text: str
    is_answer: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateSource:
    """A chat template in Jinja, or `chatml`; `special_tokens` maps variables ("bos_token") to spellings of tokens."""

    name: str
    source: str
    special_tokens: Mapping[str, str] = field(default_factory=dict)

    def compiled(self) -> ChatML | JinjaTemplate:
        return ChatML() if self.source == BUILT_IN else JinjaTemplate(self)


def find_chat_template(tokenizer: HuggingFaceTokenizer, template: str | None = None) -> TemplateSource:
    """Returns a chat template: the built-in `chatml`, the Jinja file at the path `template`, or the tokenizer's own.

    The tokenizer's own template is `chat_template.jinja` in its folder, or `chat_template` in `tokenizer_config.json`.
    """
    if template == BUILT_IN:
        return TemplateSource(name=BUILT_IN, source=BUILT_IN)
    special_tokens = {role: tokenizer.backend.id_to_token(i) for role, i in tokenizer.special_tokens_dict.items()}
    path = os.path.join(os.path.dirname(tokenizer.path), _TEMPLATE_FILE) if template is None else template
    if template is not None or (tokenizer.knows_its_file and os.path.isfile(path)):
        return TemplateSource(name=path, source=_read(path), special_tokens=special_tokens)
    source = _chosen(tokenizer.config.get("chat_template"))
    if source is None:
        hint = f"use the built-in template {BUILT_IN!r}, or give the path of a Jinja file"
        raise TokenizerError(f"tokenizer `{tokenizer.path}` has no chat template", hint=hint)
    name = f"the chat template of `{tokenizer.path}`"
    return TemplateSource(name=name, source=source, special_tokens=special_tokens)


def _chosen(entry: Any) -> str | None:
    """Returns the template from the value of `chat_template`; from a list, the template named `default`."""
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
        raise TokenizerError(message, hint=f"give the path of a file, or {BUILT_IN!r}") from error


class ChatML:
    """The built-in template: each turn is `<|im_start|>role`, newline, content, `<|im_end|>`; newlines join turns."""

    name = BUILT_IN

    def render(self, conversation: Conversation) -> list[Part]:
        """Returns the nonempty parts of a conversation, in order; raises `UnusableLineError` if rendering fails."""
        parts: list[Part] = []
        prompt = ""
        for number, message in enumerate(conversation, 1):
            if message["content"] is None:
                refuse_record(f"turn {number}: no content; the template {BUILT_IN!r} does not support tool calls")
            prompt += f"<|im_start|>{message['role']}\n"
            content = f"{message['content']}<|im_end|>"
            if message["role"] == "assistant":
                parts += [Part(prompt, is_answer=False), Part(content, is_answer=True)]
                prompt = "\n"
            else:
                prompt += f"{content}\n"
        if conversation[-1]["role"] != "assistant":
            parts.append(Part(prompt.removesuffix("\n"), is_answer=False))
        return parts


class JinjaTemplate:
    """A Jinja chat template in the style of Hugging Face, rendered in Jinja's immutable sandbox without a time limit.

    Templates may use `messages`, `add_generation_prompt`, the special tokens, `raise_exception` and (always None)
    `tools` and `documents`. `strftime_now` does not exist, so that the text depends on the conversation alone.
    """

    def __init__(self, template: TemplateSource) -> None:
        self.name: str = template.name
        self._special_tokens = template.special_tokens
        environment = _sandbox()
        try:
            self._template = environment.from_string(template.source)
        except Exception as error:  # filters, and the compiler on deeply nested blocks, may raise anything
            is_syntax = isinstance(error, require("jinja2", extra="chat").TemplateSyntaxError)
            what = f"{error.message} in line {error.lineno}" if is_syntax else in_words(error)  # type: ignore[attr-defined]
            raise TokenizerError(f"{self.name} is not a Jinja template: {what}") from error
        self._has_markers: bool = environment.has_markers

    def render(self, conversation: Conversation) -> list[Part]:
        """Returns the nonempty parts of a conversation; raises `UnusableLineError` if rendering fails. Thread-safe."""
        try:
            return self._parts(conversation)
        except UnusableLineError:
            raise
        except Exception as error:  # a template may raise anything
            jinja = require("jinja2", extra="chat")
            reason = str(error) if isinstance(error, jinja.TemplateError) else in_words(error)
            raise UnusableLineError(f"{self.name} failed: {shortened(reason)}") from error

    def _parts(self, messages: Conversation) -> list[Part]:
        if self._has_markers:
            content = json.dumps(messages, ensure_ascii=False, default=str)
            if _BEGIN in content or _END in content:
                refuse_record("the conversation contains U+FDD0 or U+FDD1, which tokenloom reserves to mark answers")
            return self._marked_parts(self._text(messages, prompt=False))
        whole = self._text(messages, prompt=False)
        parts: list[Part] = []
        done = 0
        for index, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            before = self._text(messages[:index], prompt=True)
            after = whole if index + 1 == len(messages) else self._text(messages[: index + 1], prompt=False)
            if not (done <= len(before) <= len(after) and whole.startswith(before) and whole.startswith(after)):
                reason = f"{self.name} cannot locate answers: the text of the first {index + 1} turns is not a prefix"
                refuse_record(f"{reason} of the text of all {len(messages)} turns")
            parts.append(Part(whole[done : len(before)], is_answer=False))
            parts.append(Part(whole[len(before) : len(after)], is_answer=True))
            done = len(after)
        return [part for part in [*parts, Part(whole[done:], is_answer=False)] if part.text]

    def _text(self, messages: Conversation, *, prompt: bool) -> str:
        text: str = self._template.render(
            messages=messages, add_generation_prompt=prompt, tools=None, documents=None, **self._special_tokens
        )
        return checked_text(text, f"the output of {self.name}")

    def _marked_parts(self, text: str) -> list[Part]:
        parts: list[Part] = []
        for number, piece in enumerate(text.split(_BEGIN)):
            answer, end, prompt = piece.partition(_END) if number else ("", "", piece)
            if bool(number) != bool(end) or _END in prompt:
                refuse_record(f"{self.name} has nested or incomplete `generation` blocks")
            parts += [Part(answer, is_answer=True), Part(prompt, is_answer=False)]
        return [part for part in parts if part.text]


def _sandbox() -> Any:
    """Returns the Jinja environment for chat templates: trimmed blocks, loop controls, generation markers."""
    jinja, nodes = require("jinja2", extra="chat"), require("jinja2.nodes", extra="chat")
    extensions = require("jinja2.ext", extra="chat")

    class Generation(extensions.Extension):  # type: ignore[name-defined, misc]
        """Marks the content of `{% generation %}` blocks, and sets `has_markers` if a template has such a block."""

        tags = {"generation"}  # noqa: RUF012 - Jinja's own declaration

        def parse(self, parser: Any) -> Any:
            self.environment.has_markers = True
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

        def _mark(self, caller: Any) -> str:
            return f"{_BEGIN}{caller()}{_END}"

    def raise_exception(message: str) -> None:
        raise jinja.TemplateError(message)

    environment = require("jinja2.sandbox", extra="chat").ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[extensions.loopcontrols, Generation]
    )
    environment.has_markers = False
    environment.filters["tojson"] = lambda value, indent=None, **options: json.dumps(  # Jinja's filter escapes HTML
        value, indent=indent, **{"ensure_ascii": False, **options}
    )
    del environment.filters["random"], environment.globals["lipsum"]  # rendering must be deterministic
    environment.globals["raise_exception"] = raise_exception
    return environment
