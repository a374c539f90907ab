"""Conversations, and templates that render them."""

from __future__ import annotations

import json

from tests.preprocess.corpus import byte_level_json

from tokenloom.preprocess.chat_templates import find_chat_template
from tokenloom.preprocess.schemas import read_record
from tokenloom.tokenizers.load import load_tokenizer


def talk(*turns):
    messages = [{"role": role, "content": content} for role, content in turns]
    return read_record({"messages": messages}, "messages")[0]


TWO_TURNS = talk(("user", "Hi"), ("assistant", "Ho"), ("user", "More"), ("assistant", "No"))


def parts_of(template, conversation, tmp_path, config=None):
    (tmp_path / "tokenizer.json").write_text(byte_level_json())
    if config is not None:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = load_tokenizer(tmp_path)
    if template is not None and template != "chatml":
        path = tmp_path / "template.jinja"
        path.write_text(template)
        template = str(path)
    return [
        (part.text, part.is_answer) for part in find_chat_template(tokenizer, template).compiled().render(conversation)
    ]
