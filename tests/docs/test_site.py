"""The pages of the site: what follows from the code, where links lead, and what is checked of what was built."""

import argparse
import dataclasses

import pytest
from docs_site import command_line, gather, names, settings
from docs_site.check import faults
from docs_site.docstrings import parse
from tests.docs.pages import ROOT

import tokenloom
from tokenloom.cli import build_parser
from tokenloom.cli.commands import COMMANDS


@pytest.fixture(scope="module")
def pages():
    return gather.gather()


def test_every_public_name_is_documented():
    assert names.undocumented() == []
    documented, every = names.num_documented()
    assert documented == every > 500


def test_every_public_name_has_its_place_on_the_page_of_its_namespace(pages):
    for namespace in names.namespaces():
        page = pages[f"reference/{namespace}.md"]
        assert [name for name in names.public_names(namespace) if f"\n## {name}\n" not in page] == []


def test_settings_of_a_class_are_there_with_those_of_the_classes_above():
    page = settings.page()
    begin = page.index("## GPTDatasetConfig\n")
    own = page[begin : page.index("\n## ", begin + 1)]
    fields = [each.name for each in dataclasses.fields(tokenloom.GPTDatasetConfig) if each.init and each.name != "_"]
    assert [name for name in fields if f"| `{name}` |" not in own] == []
    assert "| `sequence_length` | `int` |  | tokens per sample. |" in own


def test_every_key_of_a_run_has_a_meaning():
    for kind, keys in settings.KEYS_OF_RUN.values():
        said = parse(kind.__doc__).items
        assert [key for key in keys if not said.get(settings.OTHER_NAMES.get(key, key))] == []


def test_every_option_of_every_command_is_there_with_its_meaning():
    def commands_in(parser):
        groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
        return [each for group in groups for each in group.choices.values()]

    num_options = 0
    for parser in commands_in(build_parser()):
        page = command_line.command_page(parser.prog.removeprefix("tokenloom "), parser)
        for each in [parser, *commands_in(parser)]:
            for action in command_line.options_of(each):
                num_options += 1
                assert action.help, (each.prog, action.dest)
                assert all(f"`{name}`" in page for name in action.option_strings)
    assert num_options > 300


def test_navigation_leads_to_pages_and_to_all_that_are_written_for_readers(pages):
    named = gather.navigated()
    assert named <= set(pages)
    written = {str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")} | set(gather.generated())
    commands = {f"reference/command-line/{name}.md" for group in COMMANDS.values() for name in group}
    assert sorted(written - commands - named) == []


@pytest.mark.parametrize(
    ("link", "leads"),
    [
        ("FORMAT.md#the-index", "../FORMAT.md#the-index"),
        ("docs/runs.md", "runs.md"),
        ("README.md", "../index.md"),
        ("native", "../native/README.md"),
        ("examples/own_task.py#L3", "../examples/own_task.py.md#__codelineno-0-3"),
        ("docs/guides/report.png", "guides/report.png"),
    ],
)
def test_links_lead_to_pages_of_the_site(link, leads):
    waiting = []
    text = gather.linked(f"[a](../{link}) `[b](../{link})`\n```\n[c](../{link})\n```\n", "docs/page.md", waiting, {})
    assert text == f"[a]({leads}) `[b](../{link})`\n```\n[c](../{link})\n```\n"
    assert len(waiting) == 1


def test_a_link_to_nothing_is_an_error():
    with pytest.raises(gather.BrokenLinkError, match=r"docs/page.md: `nothing.md#x` leads to nothing"):
        gather.linked("[a](nothing.md#x)", "docs/page.md", [], {})


def test_what_is_wrong_with_a_built_site_is_found(tmp_path):
    (tmp_path / "other.html").write_text('<h1 id="top">Other</h1>')
    (tmp_path / "index.html").write_text(
        '<link rel="canonical" href="https://example.org/"><a href="other.html#top">good</a><a href="#here">good</a>'
        '<p id="here"><a href="https://example.org/">good</a><a href="gone.html">bad</a>'
        '<a href="other.html#gone">bad</a>'
        '<script src="https://example.org/x.js"></script><img src="//example.org/x.png"><img src="gone.png">'
    )
    (tmp_path / "style.css").write_text('@font-face { src: url("https://example.org/font.woff") }')
    assert faults(tmp_path) == [
        "index.html: loads https://example.org/x.js",
        "index.html: loads //example.org/x.png",
        "index.html: `gone.html` leads to nothing",
        "index.html: `other.html#gone` leads to no such place of that page",
        "index.html: `gone.png` leads to nothing",
        "style.css: loads from elsewhere",
    ]
