"""Commands in the text of pages, outside of code blocks, exist with their options."""

from __future__ import annotations

import re

from docs_site.command_line import options_of
from tests.docs.pages import all_pages

from tokenloom.cli import build_parser

PARSER = build_parser()
COMMANDS = dict(PARSER._commands.choices)
for group in [parser for parser in COMMANDS.values() if parser.groups]:
    COMMANDS |= {inner.prog.partition(" ")[2]: inner for inner in group._commands.choices.values()}


def test_commands_in_the_text_are_there_with_their_options():
    wrong = []
    fence = re.compile(r"^( *)(`{3,}).*?^\1\2$", re.DOTALL | re.MULTILINE)
    texts = [fence.sub("", page.read_text()) for page in all_pages()]
    for code in re.findall(r"`(tokenloom [a-z][^`]*)`", "\n".join(texts)):
        words = code.split()
        command = " ".join(words[1:3]) if " ".join(words[1:3]) in COMMANDS else words[1]
        if command not in COMMANDS:
            wrong.append(code)
            continue
        known = {option for action in options_of(COMMANDS[command]) for option in action.option_strings} | {"--help"}
        wrong += [f"{code}: {word}" for word in words if word.startswith("--") and word.split("=")[0] not in known]
    assert wrong == []
