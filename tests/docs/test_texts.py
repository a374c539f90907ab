"""What the texts of pages say is so: paths, names, commands with their options, names of Megatron, tables, settings."""

import functools
import json
import re
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from docs_site.command_line import options_of
from docs_site.names import namespaces, public_names
from tests.docs.pages import ROOT, all_pages
from tests.run.small_runs import lock, segment, source

import tokenloom
from tokenloom.cli import build_parser
from tokenloom.megatron.installation import OURS
from tokenloom.run.settings import parse_run
from tokenloom.run.timeline import Timeline

PACKAGE = ROOT / "src" / "tokenloom"
MAP = ROOT / "ARCHITECTURE.md"
PAGES = [
    *(ROOT / name for name in ("ARCHITECTURE.md", "CONTRIBUTING.md", "FORMAT.md", "README.md", "native/README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted(PACKAGE.rglob("README.md")),
    *sorted((ROOT / "packages").glob("*/README.md")),
]

_CODE_BLOCK = re.compile(r"```.*?```", re.DOTALL)
_IN_BACKTICKS = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\]\(([^)#]+)\)")
_PATH = re.compile(r"[\w.-]+(/[\w.-]+)*(/|\.(py|pyi|hpp|cpp|md))|[a-z_]+(/[\w.]+)+")
_DOTTED = re.compile(r"tokenloom(\.\w+)+")
_NOT_KEPT = re.compile(r"build/.*|.*/[A-Z]{4,}/.*")  # made by commands, or with a word that stands for many
_CLASS = re.compile(r"[A-Z][a-z]+([A-Z0-9][a-z]*)+")


def named(page: Path) -> list[str]:
    return _IN_BACKTICKS.findall(_CODE_BLOCK.sub("", page.read_text()))


def is_there(path: str, page: Path) -> bool:
    """Whether a path leads to something, seen from the page, the package or the top; a module needs no suffix."""
    places = [folder / path for folder in (page.parent, *page.parent.glob("src/*"), PACKAGE, ROOT)]
    return any(place.exists() or place.with_name(f"{place.name}.py").exists() for place in places)


def is_defined(dotted: str) -> bool:
    """Whether `tokenloom.a.b` is a module, or a name of one."""
    *folders, last = dotted.split(".")[1:]
    home = PACKAGE.joinpath(*folders)
    if home.joinpath(last).exists() or home.joinpath(f"{last}.py").exists():
        return True
    texts = [file.read_text() for file in (home.with_suffix(".py"), home.with_suffix(".pyi")) if file.exists()]
    texts += [file.read_text() for file in (home / "__init__.py", home / "__init__.pyi") if file.exists()]
    return any(re.search(rf"\b{last}\b", text) for text in texts)


@functools.cache
def sources() -> str:
    files = [*PACKAGE.rglob("*.py"), *ROOT.glob("packages/*/src/**/*.py"), *(ROOT / "native").rglob("*.hpp")]
    return "\n".join(file.read_text() for file in files)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_everything_that_a_page_names_is_there(page):
    words = named(page)
    paths = [word for word in words if _PATH.fullmatch(word) and not _NOT_KEPT.fullmatch(word)]
    missing = [path for path in paths if not is_there(path, page)]
    missing += [word for word in words if _DOTTED.fullmatch(word) and not is_defined(word)]
    missing += [word for word in words if _CLASS.fullmatch(word) and not re.search(rf"\b{word}\b", sources())]
    links = [link for link in _LINK.findall(page.read_text()) if "://" not in link]
    missing += [link for link in links if not (page.parent / link).exists()]
    assert missing == []


def test_every_package_has_its_paragraph_and_place_in_the_drawing():
    packages = sorted(folder.parent.name for folder in PACKAGE.glob("*/__init__.py"))
    text = MAP.read_text()
    drawing = "\n".join(_CODE_BLOCK.findall(text))
    assert [name for name in packages if f"{name}/" not in drawing or f"**`{name}/`**" not in text] == []


def test_the_map_stays_short():
    lines = MAP.read_text().splitlines()
    drawing = [line for block in _CODE_BLOCK.findall(MAP.read_text()) for line in block.splitlines()]
    assert len(lines) <= 150
    assert max(map(len, drawing)) <= 80
    assert [line for line in lines if len(line) > 140] == []


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page.name == "README.md" and page.parent not in (ROOT, PACKAGE)],
    ids=lambda page: page.parent.name,
)
def test_every_room_names_its_level(page):
    assert re.match(r"# .+\n\nLevel [123]\b", page.read_text())


COMMANDS = dict(build_parser()._commands.choices)
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


TEXT = (ROOT / "docs" / "guides" / "megatron-names.md").read_text().split("\n## What a fork may override")[0]
NOT_ABOUT_DATA = {"get_args", "log_single_rank", "logger"}


def section(title):
    return TEXT.split(f"## {title}\n")[1].split("\n## ")[0]


def names_of_megatron():
    names = {
        name
        for module in json.loads((ROOT / "tests" / "golden" / "megatron_names.json").read_text()).values()
        for name, (kind, _) in module.items()
        if kind != "import" and "." not in name
    }
    of_satellites = {name for ours in OURS.values() for name in getattr(import_module(ours), "__all__", ())}
    return (names | of_satellites) - NOT_ABOUT_DATA


def test_every_name_of_its_modules_is_on_the_page():
    assert sorted(name for name in names_of_megatron() if not name.startswith("_") and f"`{name}`" not in TEXT) == []


def test_names_that_are_the_same_are_public_there():
    for names, namespace in re.findall(r"^\| (`.*?) \| `tokenloom\.(\w+)` \|$", section("The same name"), re.MULTILINE):
        assert sorted(set(_IN_BACKTICKS.findall(names)) - set(public_names(namespace))) == []


def test_other_names_are_in_the_modules_of_the_reference_here():
    modules = [*map(import_module, OURS.values())]
    rows = re.findall(r"^\| (`.*?) \| .* \|$", section("Another name"), re.MULTILINE)
    listed = [name for names in rows for name in _IN_BACKTICKS.findall(names)]
    assert len(listed) > 50
    assert [name for name in listed if not any(hasattr(module, name) for module in modules)] == []


def test_what_it_is_here_is_there():
    for dotted in sorted(set(re.findall(r"`(tokenloom\.[\w.]+)`", TEXT))):
        _, *names = dotted.split(".")
        if names[0] == "megatron":
            import_module(dotted)
        else:
            value = functools.reduce(getattr, names, tokenloom)
            assert names[-1] in namespaces() or value is not None, dotted


def test_settings_that_are_named_of_a_class_are_of_that_class():
    named = re.findall(r"((?:`\w+`(?:, | and )?)+) of `tokenloom\.(\w+)`", TEXT)
    assert len(named) >= 6
    for settings, kind in named:
        named_class = getattr(tokenloom, kind)
        places = [*named_class.__mro__, named_class.__init__]
        annotations = {name for place in places for name in getattr(place, "__annotations__", {})}
        assert set(_IN_BACKTICKS.findall(settings)) <= annotations


FROM_MEGATRON = (ROOT / "docs" / "guides" / "from-megatron.md").read_text()


def test_the_guide_from_megatron_names_every_module_and_nothing_else():
    (names,) = re.findall(r"^## Every name\n(.*?)^## ", FROM_MEGATRON, re.DOTALL | re.MULTILINE)
    first_columns = "".join(re.findall(r"^\| (.*?) \|", names, re.MULTILINE))
    found = {word.rsplit(".", 1)[-1] for word in re.findall(r"`([a-z0-9_.]+)`", first_columns)}
    builder = "blended_megatron_dataset_builder"
    missing = {name.rsplit(".", 1)[-1] for name in OURS} - found - {builder.replace("builder", "config")}
    assert not missing, missing


def test_flags_that_stand_for_megatrons_are_options_of_ours():
    (flags,) = re.findall(r"^## Every flag\n(.*?)^## ", FROM_MEGATRON, re.DOTALL | re.MULTILINE)
    last_columns = " ".join(re.findall(r"\| ([^|]*) \|$", flags, re.MULTILINE))
    named = set(re.findall(r"(?<!\S)`?(--[a-z-]+)", last_columns))
    (commands,) = [action for action in build_parser(["prepare-cache"])._actions if action.nargs == "A..."]
    known = set(commands.choices["prepare-cache"]._option_string_actions)
    assert len(named) > 30
    assert not named - known


def test_the_reference_of_run_toml_is_a_run():
    (text,) = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "runs.md").read_text(), re.DOTALL)
    settings = parse_run(text, path="run.toml")
    assert [stage.name for stage in settings.stages] == ["main", "long"]
    assert len(settings.sources) == 3


def test_an_even_order_gives_each_rank_a_source_of_its_own_and_mixing_blocks_do_not():
    def shares_of_ranks(block: int) -> list[float]:
        run = lock([source("web", 50), source("code", 50)], [segment(0, 8192, [1, 1])], block=block)
        sources = Timeline(run).locate(np.arange(8192)).sources
        return [float(sources[rank::2].mean()) for rank in range(2)]

    assert sorted(shares_of_ranks(1)) == [0, 1]
    assert shares_of_ranks(1024) == pytest.approx([0.5, 0.5], abs=0.05)
