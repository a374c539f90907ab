"""Commands that stand in the text of pages, beside blocks, which are run: there are such commands and options."""

from __future__ import annotations

import re

from docs_site.command_line import options_of
from tests.docs.pages import ROOT, all_pages

from tokenloom.cli import build_parser

PARSER = build_parser()
PAGES = {str(page.relative_to(ROOT)): page for page in all_pages()}


def parsers():
    """Yields the words of each command, and its parser."""
    found = {}
    for name, parser in PARSER._commands.choices.items():
        found[name] = parser
        for inner, below in parser._commands.choices.items() if parser.groups else ():
            found[f"{name} {inner}"] = below
    return found


COMMANDS = parsers()


def test_commands_in_the_text_are_there_with_their_options():
    wrong = []
    texts = [
        re.sub(r"^( *)(`{3,}).*?^\1\2$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
        for page in PAGES.values()
    ]
    for code in re.findall(r"`(tokenloom [a-z][^`]*)`", "\n".join(texts)):
        words = code.split()
        command = " ".join(words[1:3]) if " ".join(words[1:3]) in COMMANDS else words[1]
        if command not in COMMANDS:
            wrong.append(code)
            continue
        known = {option for action in options_of(COMMANDS[command]) for option in action.option_strings} | {"--help"}
        wrong += [f"{code}: {word}" for word in words if word.startswith("--") and word.split("=")[0] not in known]
    assert wrong == []
