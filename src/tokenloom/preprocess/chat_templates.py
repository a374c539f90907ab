"""Conversations into texts, cut where answers begin and end.

A template is the tokenizer's own, in Jinja as Hugging Face has them, or `chatml`, which is built in. Answers are found
exactly, by `{% generation %}` markers in the template, or by rendering turn by turn: the text up to the assistant's
turn, with the generation prompt, must be a prefix of the whole text, and so must the text up to its end. A template
that breaks this (one that drops reasoning from earlier turns, say) is refused.
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
"""Noncharacters of Unicode: they mark the content of `{% generation %}`."""


@dataclass(frozen=True, slots=True)
class Part:
    """A run of a rendered conversation; `is_answer` in the assistant's turns."""

    text: str
    is_answer: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateSource:
    """A template that is not compiled.

    Attributes:
        name: its name, for messages.
        source: the template in Jinja, or `chatml`.
        special_tokens: special tokens by the names that the template may use.
    """

    name: str
    source: str
    special_tokens: Mapping[str, str] = field(default_factory=dict)

    def compiled(self) -> ChatML | JinjaTemplate:
        return ChatML() if self.source == BUILT_IN else JinjaTemplate(self)


def find_chat_template(tokenizer: HuggingFaceTokenizer, template: str | None = None) -> TemplateSource:
    """Returns a template, not compiled.

    Args:
        tokenizer: tokenizer whose special tokens the template may name.
        template: `chatml` for the built-in one; the path of a file with a Jinja template; or None for the tokenizer's
            own: `chat_template.jinja` beside it, or `chat_template` in its `tokenizer_config.json`.
    """
    if template == BUILT_IN:
        return TemplateSource(name=BUILT_IN, source=BUILT_IN)
    special_tokens = {role: tokenizer.backend.id_to_token(i) for role, i in tokenizer.special_tokens_dict.items()}
    path = os.path.join(os.path.dirname(tokenizer.path), _TEMPLATE_FILE) if template is None else template
    if template is not None or (tokenizer.knows_its_file and os.path.isfile(path)):
        return TemplateSource(name=path, source=_read(path), special_tokens=special_tokens)
    source = _chosen(tokenizer.config.get("chat_template"))
    if source is None:
        hint = f"use the built-in one, {BUILT_IN!r}, or name a file with a template in Jinja"
        raise TokenizerError(f"tokenizer `{tokenizer.path}` has no chat template", hint=hint)
    name = f"the chat template of `{tokenizer.path}`"
    return TemplateSource(name=name, source=source, special_tokens=special_tokens)


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

    def render(self, conversation: Conversation) -> list[Part]:
        """Returns the parts of a conversation, in order, none of them empty; an `UnusableLineError` where it fails."""
        parts: list[Part] = []
        prompt = ""
        for number, message in enumerate(conversation, 1):
            if message["content"] is None:
                refuse_record(f"turn {number}: no content, and the template {BUILT_IN!r} knows no tool calls")
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
    """A template as Hugging Face tokenizers have them, rendered in Jinja's immutable sandbox, without any limit.

    It sees `messages`, `add_generation_prompt`, `tools` and `documents` (none), and the special tokens by their names;
    it may call `raise_exception`. It has no time of day (`strftime_now`): the text follows from the conversation.
    """

    def __init__(self, template: TemplateSource) -> None:
        self.name: str = template.name
        self._special_tokens = template.special_tokens
        environment = _sandbox()
        try:
            self._template = environment.from_string(template.source)
        except Exception as error:  # a filter may raise anything, and so may the compiler on a thousand nested blocks
            is_syntax = isinstance(error, require("jinja2", extra="chat").TemplateSyntaxError)
            what = f"{error.message} in line {error.lineno}" if is_syntax else in_words(error)  # type: ignore[attr-defined]
            raise TokenizerError(f"{self.name} is not a Jinja template: {what}") from error
        self._has_markers: bool = environment.has_markers

    def render(self, conversation: Conversation) -> list[Part]:
        """Returns the parts of a conversation, see `ChatML`; safe from several threads."""
        try:
            return self._parts(conversation)
        except UnusableLineError:
            raise
        except Exception as error:  # a template may raise anything
            jinja = require("jinja2", extra="chat")
            said = str(error) if isinstance(error, jinja.TemplateError) else in_words(error)
            raise UnusableLineError(f"{self.name} fails: {shortened(said)}") from error

    def _parts(self, messages: Conversation) -> list[Part]:
        if self._has_markers:
            said = json.dumps(messages, ensure_ascii=False, default=str)
            if _BEGIN in said or _END in said:
                refuse_record("it holds the noncharacters U+FDD0 or U+FDD1, which mark generations here")
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
                reason = f"{self.name} is not stable: the text of the first {index + 1} turns is no prefix of the text "
                refuse_record(f"{reason}of all {len(messages)}, so answers cannot be found")
            parts.append(Part(whole[done : len(before)], is_answer=False))
            parts.append(Part(whole[len(before) : len(after)], is_answer=True))
            done = len(after)
        return [part for part in [*parts, Part(whole[done:], is_answer=False)] if part.text]

    def _text(self, messages: Conversation, *, prompt: bool) -> str:
        text: str = self._template.render(
            messages=messages, add_generation_prompt=prompt, tools=None, documents=None, **self._special_tokens
        )
        return checked_text(text, f"what {self.name} renders")

    def _marked_parts(self, text: str) -> list[Part]:
        parts: list[Part] = []
        for number, piece in enumerate(text.split(_BEGIN)):
            answer, end, prompt = piece.partition(_END) if number else ("", "", piece)
            if bool(number) != bool(end) or _END in prompt:
                refuse_record(f"{self.name} has nested `generation` blocks, or cuts them")
            parts += [Part(answer, is_answer=True), Part(prompt, is_answer=False)]
        return [part for part in parts if part.text]


def _sandbox() -> Any:
    """Returns the environment that chat templates expect: trimmed blocks, loop controls, generation markers."""
    jinja, nodes = require("jinja2", extra="chat"), require("jinja2.nodes", extra="chat")
    extensions = require("jinja2.ext", extra="chat")

    class Generation(extensions.Extension):  # type: ignore[name-defined, misc]
        """Marks the content of `{% generation %}`, and the environment of a template with such blocks."""

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
    environment.filters["tojson"] = lambda value, indent=None, **options: json.dumps(  # Jinja's own escapes for HTML
        value, indent=indent, **{"ensure_ascii": False, **options}
    )
    del environment.filters["random"], environment.globals["lipsum"]  # the text follows from the conversation
    environment.globals["raise_exception"] = raise_exception
    return environment
