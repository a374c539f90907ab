"""Every line of `run.toml`: what it means, and what is said where it is wrong."""

from __future__ import annotations

import json
import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.run.texts import RUN, SMALL, error_of, runs

from tokenloom.errors import ConfigError
from tokenloom.run.settings import (
    DEFAULTS,
    DenialSettings,
    SourceSettings,
    StageSettings,
    join_path,
    located_tokenizer,
    name_of,
    parse_run,
)


def test_all_that_a_file_may_say():
    settings = parse_run(RUN, path="jobs/run.toml")
    assert (settings.order, settings.seed, settings.tokenizer) == (1, 1234, "tokenizer.json")
    assert (settings.documents, settings.windows) == ("shuffled", "concat")
    assert (settings.mixing_block, settings.dataset) == (1024, "gpt")
    assert settings.samples == dict(DEFAULTS)
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


def test_a_run_may_have_two_to_the_sixty_samples():
    settings = parse_run(RUN.replace("samples = 1_000", f"samples = {2**60 - 900 * 10**9 // 4096}"), path="run.toml")
    assert sum(stage.num_samples or 0 for stage in settings.stages) == 2**60


def test_what_a_small_file_leaves_out():
    settings = parse_run(SMALL, path="run.toml")
    assert (settings.documents, settings.windows, settings.mixing_block) == ("shuffled", "concat", 1024)
    assert (settings.dataset, settings.tokenizer, settings.denied) == ("gpt", None, ())
    assert settings.stages == (StageSettings(name="stage 1", sequence_length=8, weights=(("web", Fraction(1)),)),)
    assert parse_run('mix = "even"\n' + SMALL, path="run.toml").mixing_block == 1
    assert parse_run("mixing_block = 1\n" + SMALL, path="run.toml").mixing_block == 1


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
    ('tokens = "900B"', "tokens = 4095", "stages.1.tokens: must be at least one sample, 4096, got 4095", None),
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


@given(runs())
def test_any_valid_run_is_read_as_it_was_meant(run):
    text, seed, sources, stages, start = run
    settings = parse_run(text, path="run.toml")
    assert (settings.seed, settings.sources, settings.stages) == (seed, sources, stages)
    assert settings.denied == (DenialSettings(start=start, documents=((sources[0].name, 7),)),)
    assert parse_run(text.replace("\n", "  # c\r\n"), path="run.toml") == settings


PIECES = sorted(
    set(re.findall(r"\w+|[^\w\s]|\n", RUN)) | {"nan", "-1", "1e400", "true", '""', "\n[", "]]", "\x00", "1979-01-01"}
)


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


def test_samples_of_a_stage():
    sizes = {
        "tokens = 8": 1,
        "tokens = 15": 1,
        'tokens = "1K"': 125,
        "samples = 7": 7,
        'samples = "7K"': 7000,
        "": None,
    }
    for keys, num_samples in sizes.items():
        stage = parse_run(SMALL + keys, path="run.toml").stages[0]
        assert (stage.num_samples, stage.is_endless) == (num_samples, num_samples is None)


def test_later_stages_have_the_sequence_length_of_the_one_before():
    more = "samples = 1\n" + "[[stages]]\nsamples = 1\nweights = { web = 1 }\n" * 2
    longer = more.replace("[[stages]]", "[[stages]]\nsequence_length = 16", 1)
    for text, lengths in ((more, [8, 8, 8]), (longer, [8, 16, 16])):
        assert [stage.sequence_length for stage in parse_run(SMALL + text, path="run.toml").stages] == lengths


@pytest.mark.parametrize("name", ["web", "a b", "été", "1", "a.b", "x" * 200])
def test_names(name):
    assert name_of(name) == name


@pytest.mark.parametrize("name", ["", " a", "a ", "a\nb", "a\0", "a\u2028b", "x" * 201])
def test_what_is_no_name(name):
    with pytest.raises(ConfigError, match="must be a "):
        name_of(name)


def test_settings_that_exclude_each_other_are_told_by_the_dataset_class():
    error = error_of(SMALL + "[samples]\nreset_position_ids = true\ninter_document_masking = true\n")
    assert "`inter_document_masking` and `reset_position_ids` exclude each other" in error.message
    assert error.message.startswith("run.toml: samples.inter_document_masking: ")


def test_settings_of_other_datasets():
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


def test_a_document_that_is_named_twice_is_denied_once():
    text = SMALL + '[[denied]]\ndocuments = ["web:2", "web:1", "web:2"]\n'
    assert parse_run(text, path="run.toml").denied[0].documents == (("web", 1), ("web", 2))
