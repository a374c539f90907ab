"""Every line of `run.toml`: what it means, what is said where it is wrong, and edits of it."""

import difflib
import json
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.run.data import write_source

from tokenloom.errors import ConfigError
from tokenloom.run.amend import denial_lines, draft_text, rewritten, source_value, stage_lines, weighted_entries
from tokenloom.run.settings import (
    DEFAULTS,
    DenialSettings,
    RunSettings,
    Shares,
    SourceSettings,
    StageSettings,
    join_path,
    located_tokenizer,
    name_of,
    parse_run,
)
from tokenloom.run.toml_file import as_key, count_of, parse_toml, read_text, share_of, weight_of

RUN = """\
order = 1
seed = 1234
tokenizer = "tokenizer.json"
documents = "shuffled"
windows = "concat"
mix = "random"
mixing_block = 1024
dataset = "gpt"

[samples]
eod_mask_loss = false

[sources]
web = { data = "data/web/*_document", holdout = "0.1%" }
code = { data = ["s3://corpus/code/*"], max_passes = 4 }
wiki = "data/wiki"

[[stages]]
name = "main"
sequence_length = 4096
tokens = "900B"
weights = { web = 8, code = 2, wiki = 0 }
on_exhausted = "stop"

[[stages]]
samples = 1_000
weights = { web = 0.1, wiki = 0.3 }

[[stages]]
name = "long"
sequence_length = 131072
passes = { web = 1, code = 2.5 }
on_exhausted = "repeat"

[[stages]]
weights = { wiki = 1 }

[[denied]]
documents = "takedown.txt"
from = 120000

[[denied]]
documents = ["web:12", "code:3"]
"""

SMALL = """\
order = 1
seed = 1
[sources]
web = "web"
[[stages]]
sequence_length = 8
weights = { web = 1 }
"""


def error_of(text: str, path: str = "run.toml") -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        parse_run(text, path=path)
    return caught.value


def test_all_that_a_file_may_say():
    settings = parse_run(RUN, path="jobs/run.toml")
    assert (settings.order, settings.seed, settings.tokenizer) == (1, 1234, "tokenizer.json")
    assert (settings.documents, settings.windows) == ("shuffled", "concat")
    assert (settings.mixing_block, settings.dataset, settings.samples) == (1024, "gpt", dict(DEFAULTS))
    assert settings.sources == (
        SourceSettings(name="web", data=("data/web/*_document",), holdout=Fraction(1, 1000)),
        SourceSettings(name="code", data=("s3://corpus/code/*",), max_passes=4),
        SourceSettings(name="wiki", data=("data/wiki",)),
    )
    main, second, long, last = settings.stages
    weights = ("web", Fraction(8)), ("code", Fraction(2))
    assert main == StageSettings(name="main", sequence_length=4096, tokens=900 * 10**9, weights=weights)
    assert (second.name, second.sequence_length, second.samples) == ("stage 2", 4096, 1000)
    assert second.weights == (("web", Fraction(1, 10)), ("wiki", Fraction(3, 10)))
    assert (long.passes, long.weights) == ((("web", Fraction(1)), ("code", Fraction(5, 2))), None)
    assert (long.on_exhausted, long.is_endless, long.num_samples) == ("repeat", False, None)
    assert (last.name, last.sequence_length, last.is_endless) == ("stage 4", 131072, True)
    assert settings.denied == (
        DenialSettings(start=120000, file="takedown.txt"),
        DenialSettings(start=0, documents=(("code", 3), ("web", 12))),
    )
    assert main.num_samples == 900 * 10**9 // 4096
    settings = parse_run(RUN.replace("samples = 1_000", f"samples = {2**60 - 900 * 10**9 // 4096}"), path="run.toml")
    assert sum(stage.num_samples or 0 for stage in settings.stages) == 2**60


def test_what_a_small_file_leaves_out():
    settings = parse_run(SMALL, path="run.toml")
    assert (settings.documents, settings.windows, settings.mixing_block) == ("shuffled", "concat", 1024)
    assert (settings.dataset, settings.tokenizer, settings.denied) == ("gpt", None, ())
    assert settings.stages == (StageSettings(name="stage 1", sequence_length=8, weights=(("web", Fraction(1)),)),)
    assert parse_run('mix = "even"\n' + SMALL, path="run.toml").mixing_block == 1
    assert parse_run("mixing_block = 1\n" + SMALL, path="run.toml").mixing_block == 1
    more = "samples = 1\n" + "[[stages]]\nsamples = 1\nweights = { web = 1 }\n" * 2
    longer = more.replace("[[stages]]", "[[stages]]\nsequence_length = 16", 1)
    for text, lengths in ((more, [8, 8, 8]), (longer, [8, 16, 16])):
        assert [stage.sequence_length for stage in parse_run(SMALL + text, path="run.toml").stages] == lengths
    sizes = {"tokens = 8": 1, "tokens = 15": 1, 'tokens = "1K"': 125, "samples = 7": 7, 'samples = "7K"': 7000}
    for keys, num_samples in [*sizes.items(), ("", None)]:
        stage = parse_run(SMALL + keys, path="run.toml").stages[0]
        assert (stage.num_samples, stage.is_endless) == (num_samples, num_samples is None)
    text = SMALL + '[[denied]]\ndocuments = ["web:2", "web:1", "web:2"]\n'
    assert parse_run(text, path="run.toml").denied[0].documents == (("web", 1), ("web", 2))


def test_paths_are_relative_to_the_file():
    settings = parse_run(RUN, path="jobs[1]/run.toml")
    assert join_path("takedown.txt", settings.folder) == "jobs[1]/takedown.txt"
    assert join_path("web/*_document", settings.folder) == "jobs[[]1]/web/*_document"
    assert join_path("/data/web", settings.folder) == "/data/web"
    assert join_path("s3://corpus/code/*", settings.folder) == "s3://corpus/code/*"
    assert located_tokenizer("tokenizer.json", settings.folder) == "jobs[1]/tokenizer.json"
    assert join_path("web", parse_run(RUN, path="run.toml").folder) == "web"
    assert located_tokenizer("null:100", "jobs") == "null:100"


def test_comments_layout_and_the_order_of_sources_are_no_content():
    other = RUN.replace('wiki = "data/wiki"\n', "").replace("[sources]", '# first\n[sources]\nwiki = ["data/wiki"]')
    other = other.replace("web = 8, code = 2", "code = 1, web = 4").replace('"900B"', "900_000_000_000")
    other = other.replace("eod_mask_loss = false", "inter_document_masking = false").replace("0.1%", "0.10%")
    content = parse_run(RUN, path="run.toml").content()
    assert parse_run(other, path="run.toml").content() == content
    assert json.loads(json.dumps(content)) == content
    assert parse_run(RUN.replace("1234", "1235"), path="run.toml").content() != content


# fmt: off
WRONG = [
    # what is replaced, by what, the key and the message, words of the hint
    ("order = 1", "order = 2", 'order: must be 1 or "megatron", got 2', "a newer version"),
    ("order = 1", 'order = "reference"', "order: ", "write `order = 1`"),
    ("seed = 1234", "seed = -1", "seed: must be in [0, 2**63), got -1", None),
    ("seed = 1234", f"seed = {2**63}", "seed: must be in [0, 2**63)", None),
    ("seed = 1234", 'seed = "1234"', "seed: must be an integer, got '1234'", "write it without quotes"),
    ("seed = 1234", "seed = 1\nsed = 1", "sed: unknown key", "did you mean `seed`?"),
    ("seed = 1234", "seed = 1\ntokens = 1", "tokens: unknown key", "write it in a `[[stages]]` table"),
    ("[samples]", "[source]\n[samples]", "source: unknown key", "did you mean `sources`?"),
    ('"tokenizer.json"', '""', "tokenizer: must be a non-empty string, got ''", None),
    ('"shuffled"', '"shufled"', 'documents: must be one of "shuffled", "file", got', "did you mean `shuffled`?"),
    ("1024", "0", "mixing_block: must be in [1, ", None),
    ("1024", "1", 'mixing_block: must be above 1 with `mix = "random"`, got 1', "remove `mix` or `mixing_block`"),
    ('mix = "random"', 'mix = "even"', 'mixing_block: must be 1 with `mix = "even"`, got 1024', None),
    ("eod_mask_loss = false", "eod_mask_los = 1", "samples.eod_mask_los: unknown key", "`eod_mask_loss`?"),
    ("eod_mask_loss = false", 'eod_mask_loss = "no"', "samples.eod_mask_loss: ", None),
    ("eod_mask_loss = false", "split = '1,0,0'", "samples.split: unknown key", "set `holdout` of the sources"),
    ("eod_mask_loss = false", "random_seed = 1", "samples.random_seed: unknown key", "write `seed` at the top"),
    ("eod_mask_loss = false", "fim_rate = 0.5", "samples.fim_rate: unknown key", None),
    ('web = { data = "data/web/*_document"', "web = { dat = 1", "sources.web.dat: unknown key", "`data`?"),
    ('data = "data/web/*_document", ', "", "sources.web.data: required, but missing", "write `web = "),
    ('"data/web/*_document"', "[]", "sources.web.data: required, but missing or empty", None),
    ('"data/web/*_document"', '""', "sources.web.data: must be a path or a list of paths, got ''", None),
    ('"data/web/*_document"', '"s3://me:word@a/b"', "sources.web.data: ", None),
    ('"0.1%"', "5", "sources.web.holdout: must be above 0% and at most 50%, got 5", 'write "5%"'),
    ("max_passes = 4", "max_passes = 0", "sources.code.max_passes: must be in [1, 2**22)", None),
    ("max_passes = 4", "weight = 4", "sources.code.weight: unknown key", "in a stage"),
    ('wiki = "data/wiki"', "wiki = 1", "sources.wiki: must be a table, got 1", None),
    ('wiki = "data/wiki"', '"a\\nb" = "a"', 'sources."a\\nb": must be a name of at most 200 printable', None),
    ('name = "main"', 'name = "long"', "stages.3.name: stage 1 already has the name 'long'", None),
    ("sequence_length = 4096", "", "stages.1.sequence_length: required, but missing", "4096"),
    ("sequence_length = 4096", "sequence_length = 0", "stages.1.sequence_length: must be in [1, 2**31), got 0", None),
    ("sequence_length = 4096", "seed = 1", "stages.1.seed: unknown key", "at the top of the file"),
    ('tokens = "900B"', "tokens = 4095", "stages.1.tokens: must be at least 4096, the sample length, got 4095", None),
    ('tokens = "900B"', "tokens = nan", "stages.1.tokens: must be an integer in [1, 2**63), got NaN", "K is 10^3"),
    ('tokens = "900B"', "tokens = 1\nsamples = 1", "stages.1.samples: cannot be combined with `tokens`", "one of"),
    ('tokens = "900B"', "passes = { web = 1 }", "stages.1.weights: cannot be combined with `passes`", "one of"),
    ('tokens = "900B"', "", 'stages.1: has no size, but only the last stage may be endless', "write one of"),
    ("weights = { web = 8, code = 2, wiki = 0 }", "", "stages.1.weights: required, but missing", "web = 1"),
    ("web = 8", "wbe = 8", "stages.1.weights.wbe: not in [sources]", "did you mean `web`?"),
    ("web = 8", "web = -8", "stages.1.weights.web: must be a finite number of at least 0, got -8", None),
    ("{ wiki = 1 }", "{ wiki = 0 }", "stages.4.weights: at least one source needs a number above 0", None),
    ("{ wiki = 1 }", "1", "stages.4.weights: must be a table, got 1", "write `weights = { web = 1, code = 1 }`"),
    ("from = 120000", "from = -1", "denied.1.from: must be in [0, 2**60)", None),
    ('documents = "takedown.txt"', "", "denied.1.documents: required, but missing", None),
    ('"web:12"', '"wbe:1"', "denied.2.documents: 'wbe:1': the run has no source 'wbe'", "did you mean `web`?"),
    ('"web:12"', "12", "denied.2.documents: must be a file name or a list such as", None),
]
MISSING = [
    ("", "file is empty", "create it with `tokenloom run init`"),
    (SMALL.replace("order = 1", ""), "order: required, but missing", "write `order = 1`"),
    (SMALL.split("[[")[0], "stages: required, but missing", "[[stages]]"),
    (SMALL.split("[")[0], "sources: required, but missing", "below `[sources]`"),
    (SMALL.replace("[[stages]]", "[stages]"), "stages: must be a list of tables, got a table", "[[stages]]"),
    (SMALL.replace("[sources]", "[[sources]]"), "sources: must be a table, got a list", "web ="),
    ("denied = 1\n" + SMALL, "denied: must be a list of tables, got 1", "[[denied]]"),
    ("stages = []\n" + SMALL.split("[[")[0], "stages: required, but missing", "[[stages]]"),
]
# fmt: on


@pytest.mark.parametrize(
    ("text", "words", "hint"), [*((RUN.replace(old, new, 1), *rest) for old, new, *rest in WRONG), *MISSING]
)
def test_what_is_wrong_is_named(text, words, hint):
    assert text != RUN
    error = error_of(text)
    assert error.message.startswith(f"run.toml: {words}")
    assert hint is None or hint in (error.hint or ""), error


MORE = {"nan", "-1", "1e400", "true", '""', "\n[", "]]", "\x00", "1979-01-01"}
PIECES = sorted(set(re.findall(r"\w+|[^\w\s]|\n", RUN)) | MORE)


@given(
    st.lists(st.tuples(st.integers(0, len(RUN)), st.integers(0, 12), st.sampled_from(PIECES)), min_size=1, max_size=4)
)
def test_any_mutation_is_read_or_refused(mutations):
    text = RUN
    for at, length, piece in mutations:
        text = text[:at] + piece + text[at + length :]
    try:
        parse_run(text, path="run.toml").content()
    except ConfigError as error:
        assert re.match("run.toml:|`run.toml` ", error.message)  # noqa: PT017


@pytest.mark.parametrize("name", ["web", "a b", "été", "1", "a.b", "x" * 200])
def test_names(name):
    assert name_of(name) == name


@pytest.mark.parametrize("name", ["", " a", "a ", "a\nb", "a\0", "a\u2028b", "x" * 201])
def test_what_is_no_name(name):
    with pytest.raises(ConfigError, match="must be a "):
        name_of(name)


def test_settings_are_those_of_the_dataset_class():
    fim = 'fim_rate = 0.5\nfim_spm_rate = 0.5\nfim_extra_tokens = { prefix = "<p>", middle = "<m>", suffix = "<s>" }\n'
    settings = parse_run('dataset = "fim"\n' + SMALL + "[samples]\n" + fim, path="run.toml")
    assert settings.samples["fim_extra_tokens"] == {"prefix": "<p>", "middle": "<m>", "suffix": "<s>"}
    assert settings.samples["fim_rate"] == 0.5
    error = error_of('dataset = "fim"\n' + SMALL + "[samples]\n" + fim.replace("0.5", "1.5", 1))
    assert error.message.startswith("run.toml: samples.fim_rate: ")
    sft = 'dataset = "sft"\n' + SMALL + '[samples]\ntrain_on = "everything"\ncontext_parallel_size = 2\n'
    samples = parse_run(sft, path="run.toml").samples
    assert (samples["train_on"], samples["context_parallel_size"]) == ("everything", 2)
    assert "one of 'answers'" in error_of(sft.replace("everything", "nothing")).message
    assert "builds" not in (error_of(sft.replace("train_on", "schema")).hint or "")
    message = error_of('windows = "best_fit"\n' + sft).message
    assert message.startswith('run.toml: windows: "best_fit" has no effect with `dataset = "sft"`: ')
    error = error_of(SMALL + "[samples]\nreset_position_ids = true\ninter_document_masking = true\n")
    assert "`inter_document_masking` and `reset_position_ids` exclude each other" in error.message
    assert error.message.startswith("run.toml: samples.inter_document_masking: ")


MEGATRON = SMALL.replace("order = 1", 'order = "megatron"').replace("weights", "samples = 100\nweights")
NO_EFFECT = 'has no effect with `order = "megatron"`'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('documents = "file"\n' + MEGATRON, f"documents: {NO_EFFECT}"),
        ("mixing_block = 1\n" + MEGATRON, f"mixing_block: {NO_EFFECT}"),
        (MEGATRON + '[[denied]]\ndocuments = "x"\n', f"denied: {NO_EFFECT}"),
        (MEGATRON.replace("seed = 1", f"seed = {2**32}"), "seed: must be in [0, 2**32) with"),
        (MEGATRON.replace('"web"', '{ data = "web", max_passes = 2 }'), f"sources.web.max_passes: {NO_EFFECT}"),
        (MEGATRON + "[[stages]]\nsamples = 1\nweights = { web = 1 }", "stages.2: only one stage is allowed with"),
        (MEGATRON.replace("samples = 100", ""), "stages.1: must not be endless with"),
        (MEGATRON.replace("samples = 100\nweights", "passes"), f"stages.1.passes: {NO_EFFECT}"),
    ],
)
def test_the_order_of_the_reference_cannot_do_all(text, words):
    assert parse_run(MEGATRON, path="run.toml").order == "megatron"
    assert error_of(text).message.startswith(f"run.toml: {words}")


# --- the TOML file, with counts, weights and shares -----------------------------------------------------------------
NO_TOML = {
    "a = 1\nb = \n": "Invalid value (at line 2, column 5)",
    "a = 1\nb\nc = 2": "(at line 2, column 2)",
    "a = 1\na = 2\n": "Cannot overwrite a value (at line 2, column 6)",
    "a = 1\n[b]\nc = 1\n[b]\n": "(at line 4, column 3)",
    "a = 1\nb = 2001-13-01": "",
    "a = 1\nb = [1,\n": "(at end of document)",
    f"a = {'9' * 5000}": "",
    "a = 1e99999999999999999999": "",
    "a = " + "[" * 100_000: "",
}


@pytest.mark.parametrize("text", NO_TOML)
def test_what_is_no_toml_is_refused_with_its_place(text):
    with pytest.raises(ConfigError) as caught:
        parse_toml(text, path="run.toml")
    assert caught.value.message.startswith("run.toml: invalid TOML: ")
    assert NO_TOML[text] in caught.value.message


def test_files_that_hold_no_text(tmp_path):
    path = tmp_path / "run.toml"
    for data, message in (
        (None, "No such file or directory\nhint: create it with `tokenloom run init`"),
        (b"seed = 1\nname = '\xe9'\n", ".* byte 0xe9 in position 17"),
        ("seed = 1".encode("utf-16"), ".* byte 0xff in position 0"),
    ):
        if data is not None:
            path.write_bytes(data)
        with pytest.raises(ConfigError, match=f"run.toml` cannot be read: {message}"):
            read_text(path)
    with pytest.raises(ConfigError, match="hint: save it as UTF-8 without a byte order mark"):
        parse_toml("\ufeffseed = 1", path="run.toml")
    with pytest.raises(ConfigError, match="Is a directory"):
        read_text(tmp_path)


def refused(table, key, **hint):
    with pytest.raises(ConfigError) as caught:
        table.refuse(key, "wrong", **hint)
    return str(caught.value)


def test_errors_name_the_key_without_its_secrets_and_fractions_are_exact():
    top = parse_toml('[a]\n"b c" = [1]\n[[d]]\n[[d]]\n"https://host/key?sig=secret" = 1\n', path="run.toml")
    assert refused(top, None, hint="mend it") == "run.toml: wrong\nhint: mend it"
    assert refused(top.table("a"), "b c") == 'run.toml: a."b c": wrong'
    (key,) = top.tables("d", hint="")[1].values
    assert "secret" not in refused(top.tables("d", hint="")[1], key)
    assert refused(top.tables("d", hint="")[1], None) == "run.toml: d.2: wrong"
    assert parse_toml("a = 0.1", path="run.toml").values == {"a": Decimal("0.1")}


NAN = Decimal("nan")
COUNTS = {"900B": 900 * 10**9, "1.5T": 15 * 10**11, "3K": 3000, "0.5M": 500_000, "10_000_000": 10**7}
SHARES = {"0.1%": Fraction(1, 1000), "50%": Fraction(1, 2), "2 %": Fraction(1, 50), Decimal("0.5"): Fraction(1, 2)}
WEIGHTS = [0, 1, Decimal("0.1"), Decimal("1e-30"), Decimal("1e29"), 10**29]


@pytest.mark.parametrize(
    ("read", "value", "number"),
    [
        *((count_of, *each) for each in (*COUNTS.items(), (1, 1), (2**63 - 1, 2**63 - 1), (Decimal("1e9"), 10**9))),
        *((share_of, *each) for each in SHARES.items()),
        *((weight_of, each, Fraction(each)) for each in WEIGHTS),
    ],
)
def test_what_is_read(read, value, number):
    assert read(value) == number


NO_COUNTS = [0, 2**63, True, Decimal("1.5"), NAN, "1.5", "-1B", "1.2345K", "900X", "1__0", None, "9999999T"]
NO_WEIGHTS = [-1, NAN, Decimal("inf"), True, "1", Decimal("1e999999999"), Decimal("1e-31"), 10**30]
NO_SHARES = ["0%", "50.1%", "-1%", "1", "%", "nan%", 0, 5, True, Decimal("0.6"), NAN, None]


@pytest.mark.parametrize(
    ("read", "value", "message"),
    [
        *((count_of, each, r"(?s)must be an integer in .*B or G 10\^9") for each in NO_COUNTS),
        *((weight_of, each, "must be a finite number of at least 0, got") for each in NO_WEIGHTS),
        *((share_of, each, "must be above 0% and at most 50%, got") for each in NO_SHARES),
    ],
)
def test_what_is_refused(read, value, message):
    with pytest.raises(ConfigError, match=message):
        read(value)


@given(st.text("0123456789_.KMBGT% e-") | st.decimals() | st.integers() | st.booleans() | st.none())
def test_any_value_is_a_number_or_refused(value):
    for read in (count_of, weight_of, share_of):
        with suppress(ConfigError):
            assert 0 <= read(value) < 10**30


# --- the first `run.toml`, and edits: what changes, and that nothing else does --------------------------------------
PATH = "run.toml"
WEB = (("web", Fraction(1)),)
NEW = StageSettings(name="new", sequence_length=16, samples=5, weights=WEB)

TEXT = """\
# our run
order = 1
seed = 1   # do not change
[sources]  # all of it
web = "web"
# more to come
code = [   # two
  "a",
  "b" ]  # behind

# first
[[stages]]  # begins
sequence_length = 8
tokens = "1K"   # not much
weights.web = 1
weights.code = 2

# then
[[stages]]
samples = 10
weights = { web = 1 }  # only web

[[denied]]
documents = "x"
"""


Edit = Callable[[RunSettings], RunSettings]


def edited(text: str, *edits: Edit) -> str:
    """Returns a text after edits, which says what they meant."""
    settings = parse_run(text, path=PATH)
    for each in edits:
        settings = each(settings)
    after, found = rewritten(text, settings)
    assert found == parse_run(after, path=PATH)
    return after


def set_samples(name: str, samples: int, *, weights: Shares | None = None) -> Edit:
    def edit(stage: StageSettings) -> StageSettings:
        sized = replace(stage, tokens=None, samples=samples, passes=None, weights=weights or stage.weights)
        return sized if stage.name == name else stage

    return lambda settings: replace(settings, stages=tuple(map(edit, settings.stages)))


def insert_stage(new: StageSettings, *, after: str) -> Edit:
    def stages(old: tuple[StageSettings, ...]) -> list[StageSettings]:
        return [each for stage in old for each in ([stage, new] if stage.name == after else [stage])]

    return lambda settings: replace(settings, stages=tuple(stages(settings.stages)))


def denied_with(**denial) -> Edit:
    return lambda settings: replace(settings, denied=(*settings.denied, DenialSettings(**denial)))


def add_source(name: str, data: str) -> Edit:
    new = SourceSettings(name=name, data=(data,))
    return lambda settings: replace(settings, sources=(*settings.sources, new))


def changed(before: str, after: str) -> list[str]:
    """Returns the lines that were taken out, with -, and those that were put in, with +."""
    lines = difflib.ndiff(before.splitlines(), after.splitlines())
    return [line for line in lines if line[:1] in "+-"]


def test_a_stage_is_given_samples():
    after = edited(TEXT, set_samples("stage 1", 30))
    assert after == TEXT.replace('tokens = "1K" ', "samples = 30 ")
    passes = TEXT.replace("samples = 10\nweights = { web = 1 }  # only web", "passes = { web = 1.5 }  # not long")
    after = edited(passes, set_samples("stage 2", 4, weights=WEB))
    passes_line, lines = "passes = { web = 1.5 }  # not long\n", "samples = 4  # not long\nweights = { web = 1 }\n"
    assert after == passes.replace(passes_line, lines)
    with pytest.raises(ConfigError, match=r"the edited file would be invalid: run.toml: stages.2.weights: required"):
        edited(passes, set_samples("stage 2", 4))
    below = SMALL.replace("weights = { web = 1 }", "[stages.passes]\nweb = 1\n# end")
    after = edited(below, set_samples("stage 1", 4, weights=WEB))
    assert after == SMALL.replace("weights", "samples = 4\nweights") + "# end\n"
    endless = edited(SMALL, set_samples("stage 1", 4))
    assert endless == SMALL.replace("sequence", "samples = 4\nsequence")


def test_a_stage_between_others_changes_none_of_them():
    after = edited(TEXT, insert_stage(NEW, after="stage 1"))
    stages = parse_run(after, path=PATH).stages
    assert [(stage.name, stage.sequence_length) for stage in stages] == [("stage 1", 8), ("new", 16), ("stage 2", 8)]
    assert 'weights.code = 2\n\n[[stages]]\nname = "new"\n' in after
    assert '\n\n# then\n[[stages]]\nname = "stage 2"\nsequence_length = 8\nsamples = 10\n' in after
    assert "# first\n[[stages]]  # begins\nsequence_length = 8\n" in after
    with pytest.raises(ConfigError, match=r"would be invalid: run.toml: stages.1: has no size"):
        edited(SMALL, insert_stage(NEW, after="stage 1"))


def test_a_denial_and_a_source():
    after = edited(TEXT, denied_with(file="list.txt", start=70))
    assert after == TEXT + '\n[[denied]]\ndocuments = "list.txt"\nfrom = 70\n'
    after = edited(TEXT.rstrip(), denied_with(documents=(("web", 1), ("web", 2)), start=70, reason="a letter"))
    assert after == TEXT + '\n[[denied]]\ndocuments = ["web:1", "web:2"]\nfrom = 70\nreason = "a letter"\n'
    after = edited(TEXT, add_source("wiki", "w/*"))
    assert after == TEXT.replace("# behind\n", '# behind\nwiki = { data = "w/*" }\n')
    after = edited(TEXT, add_source("a b", "c"))
    assert '# behind\n"a b" = { data = "c" }\n\n# first' in after
    apart = TEXT.replace('web = "web"', "").replace("code = [", "[sources.web]\ndata = [")
    apart = apart.replace("weights.code = 2\n", "")
    after = edited(apart, add_source("wiki", "w"))
    assert after == apart + '\n[sources.wiki]\ndata = "w"\n'


def test_several_edits_of_one_file_and_none():
    new = insert_stage(replace(NEW, weights=(("wiki", Fraction(1)),)), after="stage 1")
    edits = denied_with(file="list.txt", start=70), add_source("wiki", "w"), set_samples("stage 1", 30), new
    after = edited(TEXT, *edits)
    assert [line for line in changed(TEXT, after) if line[0] == "-"] == ['- tokens = "1K"   # not much']
    text = TEXT.replace("\n", "\r\n", 3).rstrip() + "  "
    assert edited(text) == text


INLINE = """\
order = 1
seed = 1
sources.web = "web"
stages = [ { sequence_length = 8, samples = 3, weights = { web = 1 } } ]
denied = []
"""


def test_files_that_are_laid_out_otherwise_are_left_alone():
    with pytest.raises(ConfigError, match=r"was not changed: stages can be edited only if") as caught:
        edited(INLINE, insert_stage(NEW, after="stage 1"))
    assert caught.value.hint == (
        'write by hand:\n    [[stages]]\n    name = "new"\n    sequence_length = 16\n    samples = 5\n'
        "    weights = { web = 1 }"
    )
    with pytest.raises(ConfigError, match=r"(?s)would be invalid.*invalid TOML.*write by hand:\n    \[\[denied\]\]"):
        edited(INLINE, denied_with(file="x", start=0))
    apart = TEXT.replace("# then\n", '[[denied]]\ndocuments = "y"\n# then\n')
    with pytest.raises(ConfigError, match=r"(?s)the order of its tables would change.*write by hand:\n    samples = 4"):
        edited(apart, set_samples("stage 1", 4))


def test_a_run_is_read_back_from_the_lines_of_its_settings():
    for text in (RUN, RUN.replace("web =", '"é \\"#=\'" =').replace("web:", "é \\\"#=':")):
        before = parse_run(text, path=PATH)
        lines = ["order = 1", "seed = 1234", "[sources]"]
        lines += [f"{as_key(source.name)} = {source_value(source)}" for source in before.sources]
        lines += [line for stage in before.stages for line in ("[[stages]]", *stage_lines(stage))]
        lines += [line for denial in before.denied for line in ("[[denied]]", *denial_lines(denial))]
        after = parse_run("\n".join(lines).replace("\n", "  # c\r\n"), path=PATH)
        assert (after.sources, after.stages, after.denied) == (before.sources, before.stages, before.denied)


NAMES = st.lists(st.text("ab c.é\"'#=", min_size=1, max_size=4).filter(lambda name: name == name.strip()), unique=True)


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


@st.composite
def runs(draw):
    """Draws the text of a run, and what was meant."""
    names, seed, start = draw(NAMES.filter(bool)), draw(st.integers(0, 2**63 - 1)), draw(st.integers(0, 2**40))
    lines, sources, stages = ["order = 1", f"seed = {seed}", "[sources]"], [], []
    for number, name in enumerate(names):
        data = tuple(f"data/{number}_{part}" for part in range(draw(st.integers(1, 2))))
        passes, share = draw(st.none() | st.integers(1, 9)), draw(st.none() | st.integers(1, 500))
        holdout = None if share is None else Fraction(share, 1000)
        sources.append(SourceSettings(name=name, data=data, max_passes=passes, holdout=holdout))
        keys = [f"data = {json.dumps(data)}"]
        keys += [] if passes is None else [f"max_passes = {passes}"]
        keys += [] if share is None else [f'holdout = "{share / 10}%"']
        lines.append(f"{quoted(name)} = {{ {', '.join(keys)} }}")
    count = draw(st.integers(1, 4))
    for number in range(count):
        chosen = [name for name in names if draw(st.booleans())] or names[:1]
        shares = tuple((name, Fraction(draw(st.integers(1, 1000)), 100)) for name in chosen)
        kind = draw(st.sampled_from(["tokens", "samples", "passes"] + [None] * (number == count - 1)))
        size, length = draw(st.integers(100, 10**6)), draw(st.integers(1, 100))
        by = "passes" if kind == "passes" else "weights"
        stage = {by: shares} | ({kind: size} if kind in ("tokens", "samples") else {})
        stages.append(StageSettings(name=f"stage {number + 1}", sequence_length=length, **stage))
        lines += ["[[stages]]", f"sequence_length = {length}"]
        lines += [f'{kind} = "{size / 1000}K"'] if kind in ("tokens", "samples") else []
        lines.append(f"{by} = {{ {', '.join(f'{quoted(name)} = {float(share)}' for name, share in shares)} }}")
    lines += ["[[denied]]", f"documents = [{quoted(names[0] + ':7')}]", f"from = {start}"]
    return "\n".join(lines), seed, tuple(sources), tuple(stages), start


@given(runs())
def test_any_valid_run_is_read_as_it_was_meant_and_read_back(run):
    text, seed, sources, stages, start = run
    settings = parse_run(text, path=PATH)
    denial = DenialSettings(start=start, documents=((sources[0].name, 7),))
    meant = seed, sources, stages, (denial,)
    assert (settings.seed, settings.sources, settings.stages, settings.denied) == meant
    assert parse_run(text.replace("\n", "  # c\r\n"), path=PATH) == settings
    lines = ["order = 1", f"seed = {seed}", "[sources]"]
    lines += [f"{as_key(source.name)} = {source_value(source)}" for source in sources]
    lines += [line for stage in stages for line in ("[[stages]]", *stage_lines(stage))]
    again = parse_run("\n".join([*lines, "[[denied]]", *denial_lines(denial)]), path=PATH)
    assert (again.seed, again.sources, again.stages, again.denied) == meant


@given(runs(), st.data())
def test_edits_of_any_run_keep_its_lines_and_meaning(run, data):
    text, _, sources, stages, _ = run
    end = data.draw(st.sampled_from(["\n", "\r\n", "  # c\n", "\n\n"]))
    text = text.replace("\n", end) + data.draw(st.sampled_from(["", end]))
    before = parse_run(text, path=PATH)
    number = data.draw(st.integers(0, len(stages) - 1))
    name, shares = stages[number].name, ((sources[0].name, Fraction(7, 4)),)
    if stages[-1].is_endless and data.draw(st.booleans()):
        text = edited(text, set_samples(stages[-1].name, 12))
    elif not stages[number].is_endless:
        weights = shares if stages[number].passes is not None or data.draw(st.booleans()) else None
        after = edited(text, set_samples(name, 9, weights=weights))
        assert parse_run(after, path=PATH).stages[number].samples == 9
        new = replace(NEW, weights=shares)
        after = edited(text, insert_stage(new, after=name))
        found = parse_run(after, path=PATH)
        assert found.stages == (*stages[: number + 1], new, *stages[number + 1 :])
        assert [line for line in changed(text, after) if line[0] == "-"] == []
        assert replace(found, stages=stages) == before
    after = edited(text, denied_with(file="list", start=5), add_source("new source", "new/*"))
    found = parse_run(after, path=PATH)
    assert (len(found.denied), found.sources[-1].data) == (2, ("new/*",))
    assert [line for line in changed(text, after) if line[0] == "-"] == []


def test_data_without_weights_are_read_once_or_share_a_size_by_their_tokens(tmp_path):
    text = draft_text(("data/web/*", "code"), sequence_length=8, path="run.toml")
    assert parse_run(text, path=PATH).stages[0].passes == (("web", Fraction(1)), ("code", Fraction(1)))
    data = (write_source(str(tmp_path / "a"), 30, 30), write_source(str(tmp_path / "b"), 20))
    text = draft_text(data, sequence_length=8, samples=5, path=str(tmp_path / "run.toml"))
    assert parse_run(text, path=PATH).stages[0].weights == (("a", Fraction(3)), ("b", Fraction(1)))


def test_sources_are_named_by_what_their_paths_say():
    names = dict.fromkeys(("data/web_text_document", "data/web/*_document", "data/web_*", "web.bin"), "web")
    for entry, name in (names | {"data/books/": "books", "*": "data", "a b": "a b"}).items():
        text = draft_text((entry,), sequence_length=8, path="run.toml")
        assert [source.name for source in parse_run(text, path="run.toml").sources] == [name]


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (["0.8", "web", "code"], r"entry 1 of the blend must be a prefix, got the number '0.8'"),
        (["web", "0.2"], r"entry 2 of the blend must be a prefix, got the number '0.2'"),
        (["0", "web"], r"`web` in the blend"),
        (["-1", "web"], r"`web` in the blend"),
    ],
)
def test_blends_that_are_none(entries, message):
    with pytest.raises(ConfigError, match=message):
        weighted_entries(entries)
