"""Conversations into the text a model reads, cut where the assistant begins and ends.

A template is the tokenizer's own, in Jinja as Hugging Face has them, or `chatml`, which is built in. What of a text the
assistant said is found exactly, either by `{% generation %}` markers in the template, or by rendering turn by turn: the
text up to the assistant's turn, with the generation prompt, must begin the whole text, and so must the text up to its
end. A template for which that does not hold (one that drops reasoning from earlier turns, say) is refused.
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
"""Noncharacters of Unicode, for use inside a program: they mark what `{% generation %}` encloses."""


@dataclass(frozen=True, slots=True)
class Part:
    """A run of a rendered conversation; `is_answer` where the assistant says it."""

    text: str
    is_answer: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateSource:
    """A template that was found, and not compiled.

    Attributes:
        name: name of it, for messages.
        source: the template in Jinja, or `chatml`: equal for equal templates.
        special_tokens: the special tokens that it may name, by their names.
    """

    name: str
    source: str
    special_tokens: Mapping[str, str] = field(default_factory=dict)

    def compiled(self) -> ChatML | JinjaTemplate:
        """Returns what renders."""
        return ChatML() if self.source == BUILT_IN else JinjaTemplate(self)


def find_chat_template(tokenizer: HuggingFaceTokenizer, template: str | None = None) -> TemplateSource:
    """Returns a template, as it stands.

    Args:
        tokenizer: whose special tokens the template may name.
        template: `chatml` for the one built in; the path of a file with a Jinja template; or None for the
            tokenizer's own: `chat_template.jinja` beside it, or `chat_template` in its `tokenizer_config.json`.
    """
    if template == BUILT_IN:
        return TemplateSource(name=BUILT_IN, source=BUILT_IN)
    special_tokens = {role: tokenizer.backend.id_to_token(i) for role, i in tokenizer.special_tokens_dict.items()}
    path = os.path.join(os.path.dirname(tokenizer.path), _TEMPLATE_FILE) if template is None else template
    if template is not None or (tokenizer.knows_its_file and os.path.isfile(path)):
        return TemplateSource(name=path, source=_read(path), special_tokens=special_tokens)
    source = _chosen(tokenizer.config.get("chat_template"))
    if source is None:
        message = f"tokenizer `{tokenizer.path}` has no chat template"
        hint = f"use the built-in one, {BUILT_IN!r}, or name a file with a template in Jinja"
        raise TokenizerError(message, hint=hint)
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
        """Returns the parts of a conversation, in order; none is empty.

        Raises:
            UnusableLineError: this conversation cannot be rendered.
        """
        parts: list[Part] = []
        prompt = ""
        for number, message in enumerate(conversation, 1):
            if message["content"] is None:
                refuse_record(f"turn {number}: the template {BUILT_IN!r} knows no tool calls, and there is no content")
            prompt += f"<|im_start|>{message['role']}\n"
            said = f"{message['content']}<|im_end|>"
            if message["role"] == "assistant":
                parts += [Part(prompt, is_answer=False), Part(said, is_answer=True)]
                prompt = "\n"
            else:
                prompt += f"{said}\n"
        if conversation[-1]["role"] != "assistant":
            parts.append(Part(prompt.removesuffix("\n"), is_answer=False))
        return parts


class JinjaTemplate:
    """A template as Hugging Face tokenizers have them, rendered in a sandbox that can change nothing.

    It sees `messages`, `add_generation_prompt`, `tools` and `documents` (none), and the special tokens by their names;
    it may call `raise_exception`. It knows no time of day (`strftime_now`): the text follows from the conversation.
    It is given neither a limit of memory nor of time here.

    Args:
        template: the template, as it stands.
    """

    def __init__(self, template: TemplateSource) -> None:
        self.name: str = template.name
        name = self.name
        self._special_tokens = template.special_tokens
        jinja = require("jinja2", extra="chat")
        environment = _sandbox()
        try:
            self._template = environment.from_string(template.source)
            self._has_markers = _has_generation_block(environment, template.source)
        except jinja.TemplateSyntaxError as error:
            message = f"{name} is not a Jinja template: {error.message} in line {error.lineno}"
            raise TokenizerError(message) from error
        except Exception as error:  # whatever a filter raises, and the compiler on what is nested a thousand times
            message = f"{name} is not a Jinja template: {in_words(error)}"
            raise TokenizerError(message) from error

    def render(self, conversation: Conversation) -> list[Part]:
        """Returns the parts of a conversation, see `ChatML`; safe from several threads."""
        try:
            return self._parts(conversation)
        except UnusableLineError:
            raise
        except Exception as error:  # a template may raise anything
            jinja = require("jinja2", extra="chat")
            said = str(error) if isinstance(error, jinja.TemplateError) else in_words(error)
            reason = f"{self.name} fails: {shortened(said)}"
            raise UnusableLineError(reason) from error

    def _parts(self, messages: Conversation) -> list[Part]:
        if self._has_markers:
            said = json.dumps(messages, ensure_ascii=False, default=str)
            if _BEGIN in said or _END in said:
                refuse_record("it holds the noncharacters U+FDD0 or U+FDD1, which mark generations here")
            return self._marked_parts(self._text(messages, prompt=False))
        return self._parts_by_turn(messages)

    def _parts_by_turn(self, messages: Conversation) -> list[Part]:
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

    def _text(self, messages: Conversation, *, prompt: bool) -> str:
        text: str = self._template.render(
            messages=messages,
            add_generation_prompt=prompt,
            tools=None,
            documents=None,
            **self._special_tokens,
        )
        return checked_text(text, f"what {self.name} renders")

    def _marked_parts(self, text: str) -> list[Part]:
        parts: list[Part] = []
        for number, piece in enumerate(text.split(_BEGIN)):
            answer, end, prompt = piece.partition(_END) if number else ("", "", piece)
            if bool(number) != bool(end) or _END in prompt:
                refuse_record(f"{self.name} marks what is generated inside of what is, or without an end")
            parts += [Part(answer, is_answer=True), Part(prompt, is_answer=False)]
        return [part for part in parts if part.text]


def _sandbox() -> Any:
    """Returns the environment that chat templates expect: trimmed blocks, loop controls, generation markers."""
    extensions = require("jinja2.ext", extra="chat")
    environment = require("jinja2.sandbox", extra="chat").ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[extensions.loopcontrols, _generation_extension()]
    )
    environment.filters["tojson"] = _to_json
    del environment.filters["random"], environment.globals["lipsum"]  # the text follows from the conversation
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
    """Whether a template marks what the assistant says."""
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
