"""Every line of `run.toml`: what it means, and what is said where it is wrong."""

from __future__ import annotations

import json
import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.run.texts import RUN, SMALL, error_of, fault_of, runs

from tokenloom.errors import ConfigError
from tokenloom.run.settings import (
    DenialSettings,
    SourceSettings,
    StageSettings,
    located,
    located_tokenizer,
    name_of,
    parse_run,
)


def test_all_that_a_file_may_say():
    settings = parse_run(RUN, path="jobs/run.toml")
    assert (settings.order, settings.seed, settings.tokenizer) == (1, 1234, "tokenizer.json")
    assert (settings.documents, settings.windows, settings.mixing_block, settings.dataset) == (
        *("shuffled", "concat", 1024, "gpt"),
    )
    assert settings.samples == dict.fromkeys(
        ["create_attention_mask", "eod_mask_loss", "reset_attention_mask", "reset_position_ids"], False
    )
    assert settings.sources == (
        SourceSettings(name="web", data=("data/web/*_document",), holdout=Fraction(1, 1000)),
        SourceSettings(name="code", data=("s3://corpus/code/*",), max_passes=4),
        SourceSettings(name="wiki", data=("data/wiki",)),
    )
    main, second, long, last = settings.stages
    assert main == StageSettings(
        name="main",
        sequence_length=4096,
        tokens=900 * 10**9,
        weights=(("web", Fraction(8)), ("code", Fraction(2))),
    )
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
    assert located("takedown.txt", settings.folder) == "jobs[1]/takedown.txt"
    assert located("web/*_document", settings.folder) == "jobs[[]1]/web/*_document"
    assert located("/data/web", settings.folder) == "/data/web"
    assert located("s3://corpus/code/*", settings.folder) == "s3://corpus/code/*"
    assert located_tokenizer("tokenizer.json", settings.folder) == "jobs[1]/tokenizer.json"
    assert located("web", parse_run(RUN, path="run.toml").folder) == "web"
    assert located_tokenizer("null:100", "jobs") == "null:100"


def test_comments_layout_and_the_order_of_sources_are_no_content():
    other = RUN.replace('wiki = "data/wiki"\n', "").replace("[sources]", '# first\n[sources]\nwiki = ["data/wiki"]')
    other = other.replace("web = 8, code = 2", "code = 1, web = 4").replace('"900B"', "900_000_000_000")
    other = other.replace("eod_mask_loss = false", "inter_document_masking = false").replace("0.1%", "0.10%")
    content = parse_run(RUN, path="run.toml").content()
    assert parse_run(other, path="run.toml").content() == content
    assert json.loads(json.dumps(content)) == content
    assert parse_run(RUN.replace("1234", "1235"), path="run.toml").content() != content


WRONG = [
    # what is replaced, by what, the key that is named, words of the message, words of the hint
    ("order = 1", "order = 2", "order", "expected `order` to be one of 1", "a newer version"),
    ("order = 1", 'order = "reference"', "order", "found 'reference'", "write `order = 1`"),
    ("seed = 1234", "seed = -1", "seed", "expected `seed` to be in [0, 2**63), found -1", None),
    ("seed = 1234", f"seed = {2**63}", "seed", "expected `seed` to be in [0, 2**63)", None),
    ("seed = 1234", 'seed = "1234"', "seed", "expected `seed` to be an integer", "write it without quotes"),
    ("seed = 1234", "seed = 1\nsed = 1", "sed", "expected the file without `sed`", "did you mean `seed`?"),
    ("seed = 1234", "seed = 1\ntokens = 1", "tokens", "without `tokens`", "it belongs to a stage"),
    ("[samples]", "[source]\n[samples]", "source", "without `source`", "write `[sources]`"),
    ('"tokenizer.json"', '""', "tokenizer", "expected `tokenizer` to be a text, found ''", None),
    ('"shuffled"', '"shufled"', "documents", 'one of "shuffled", "file"', "did you mean `shuffled`?"),
    ("1024", "0", "mixing_block", "expected `mixing_block` to be in [1, ", None),
    ("1024", "1", "mixing_block", 'above 1 beside `mix = "random"`, found 1', "leave one of the two out"),
    ('mix = "random"', 'mix = "even"', "mixing_block", 'of 1 beside `mix = "even"`, found 1024', None),
    ('"gpt"', '"gtp"', "dataset", 'one of "gpt", "fim", "sft", "varlen"', "did you mean `gpt`?"),
    (
        "eod_mask_loss = false",
        "eod_mask_los = 1",
        "samples.eod_mask_los",
        "expected [samples] without",
        "`eod_mask_loss`?",
    ),
    ("eod_mask_loss = false", 'eod_mask_loss = "no"', "samples.eod_mask_loss", "to be True or False", None),
    ("eod_mask_loss = false", "split = '1,0,0'", "samples.split", "without `split`", "give sources a `holdout`"),
    (
        "eod_mask_loss = false",
        "random_seed = 1",
        "samples.random_seed",
        "without `random_seed`",
        "write `seed` at the top",
    ),
    ("eod_mask_loss = false", "fim_rate = 0.5", "samples.fim_rate", "without `fim_rate`", None),
    (
        'web = { data = "data/web/*_document"',
        "web = { dat = 1",
        "sources.web.dat",
        "source 'web' without `dat`",
        "`data`?",
    ),
    (
        'data = "data/web/*_document", ',
        "",
        "sources.web.data",
        "expected `data` of source 'web', found none",
        "such as",
    ),
    (
        '"data/web/*_document"',
        "[]",
        "sources.web.data",
        "`data` of source 'web' to be a path, or a list of paths, found an empty list",
        None,
    ),
    (
        '"data/web/*_document"',
        '""',
        "sources.web.data",
        "`data` of source 'web' to be a path, or a list of paths, found ''",
        None,
    ),
    ('"data/web/*_document"', '"s3://me:word@a/b"', "sources.web.data", "", None),
    ('"0.1%"', '"60%"', "sources.web.holdout", "`holdout` of source 'web' to be more than 0% and at most 50%", None),
    ('"0.1%"', "5", "sources.web.holdout", "found 5", 'write "5%"'),
    (
        "max_passes = 4",
        "max_passes = 0",
        "sources.code.max_passes",
        "`max_passes` of source 'code' to be in [1, 2**22)",
        None,
    ),
    ("max_passes = 4", "max_pases = 4", "sources.code.max_pases", "source 'code' without `max_pases`", "`max_passes`?"),
    ("max_passes = 4", "weight = 4", "sources.code.weight", "source 'code' without `weight`", "it belongs to a stage"),
    ('wiki = "data/wiki"', "wiki = 1", "sources.wiki", "expected `wiki` in [sources] to be a table, found 1", None),
    ('wiki = "data/wiki"', '" w" = "a"', 'sources." w"', "without blanks around it", None),
    ('wiki = "data/wiki"', '"a\\nb" = "a"', 'sources."a\\nb"', "printable", None),
    (
        'name = "main"',
        'name = "long"',
        "stages.3.name",
        "another name than 'long', which stage 1 of the file has",
        None,
    ),
    (
        "sequence_length = 4096",
        "",
        "stages.1.sequence_length",
        "expected `sequence_length` of stage 'main', found none",
        "4096",
    ),
    ("sequence_length = 4096", "sequence_length = 0", "stages.1.sequence_length", "in [1, 2**31), found 0", None),
    (
        "sequence_length = 4096",
        "sequence_lenght = 1",
        "stages.1.sequence_lenght",
        "stage 'main' without",
        "`sequence_length`?",
    ),
    ("sequence_length = 4096", "seed = 1", "stages.1.seed", "stage 'main' without `seed`", "at the top of the file"),
    ('tokens = "900B"', "tokens = 4095", "stages.1.tokens", "the 4096 tokens of a sample", None),
    ('tokens = "900B"', "tokens = 0", "stages.1.tokens", "`tokens` of stage 'main' to be a whole number", "K is 10^3"),
    ('tokens = "900B"', 'tokens = "900X"', "stages.1.tokens", "found '900X'", "B or G 10^9"),
    ('tokens = "900B"', "tokens = nan", "stages.1.tokens", "found NaN", None),
    ('tokens = "900B"', "tokens = 1\nsamples = 1", "stages.1.samples", "found `tokens` and `samples`", "all but one"),
    ('tokens = "900B"', "passes = { web = 1 }", "stages.1.weights", "expected `passes` or `weights`", "leave one"),
    ('tokens = "900B"', "", "stages.1", "expected `tokens`, `samples` or `passes` of stage 'main'", "only the last"),
    (
        "weights = { web = 8, code = 2, wiki = 0 }",
        "",
        "stages.1.weights",
        "expected `weights` of stage 'main', found none",
        None,
    ),
    ("web = 8", "wbe = 8", "stages.1.weights.wbe", "found 'wbe', which [sources] does not have", "did you mean `web`?"),
    ("web = 8", "web = -8", "stages.1.weights.web", "`web` in `weights` of stage 'main' to be a finite number", None),
    ("web = 8", "web = inf", "stages.1.weights.web", "found Infinity", None),
    ("web = 8", 'web = "8"', "stages.1.weights.web", "found '8'", "write it without quotes"),
    ("web = 8", "web = 1e999999999", "stages.1.weights.web", "finite number", "30 digits"),
    (
        "{ wiki = 1 }",
        "{ wiki = 0 }",
        "stages.4.weights",
        "above 0 in `weights` of stage 'stage 4', found only 0",
        None,
    ),
    ("{ wiki = 1 }", "1", "stages.4.weights", "to be a table, found 1", "write `weights = { web = 1, code = 1 }`"),
    ('"stop"', '"stopp"', "stages.1.on_exhausted", 'one of "stop", "renormalise", "repeat"', "did you mean `stop`?"),
    ("from = 120000", "from = -1", "denied.1.from", "`from` of [[denied]] to be in [0, 2**60)", None),
    ('"takedown.txt"', "1", "denied.1.documents", "the name of a file, or a list", None),
    ('documents = "takedown.txt"', "", "denied.1.documents", "expected `documents` of [[denied]], found none", None),
    ('"web:12"', '"wbe:1"', "denied.2.documents", "of a source of this run, found 'wbe:1'", "did you mean `web`?"),
    ('"web:12"', "12", "denied.2.documents", "the name of a file, or a list such as", None),
]


@pytest.mark.parametrize(("old", "new", "key", "words", "hint"), WRONG)
def test_what_is_wrong_is_named(old, new, key, words, hint):
    assert old in RUN
    error = error_of(RUN.replace(old, new, 1))
    assert error.message.startswith(f"run.toml: {key}: expected ")
    assert words in error.message
    assert hint is None or hint in (error.hint or ""), error


@pytest.mark.parametrize(
    ("text", "words", "hint"),
    [
        ("", "run.toml: expected a run, found an empty file", "`tokenloom run init` writes one"),
        ("# nothing\n", "run.toml: expected a run, found an empty file", "run init"),
        (SMALL.replace("order = 1", ""), "run.toml: order: expected `order`, found none", "such as `order = 1`"),
        (SMALL.replace("seed = 1", ""), "run.toml: seed: expected `seed`, found none", "such as `seed = 1234`"),
        (SMALL.split("[[")[0], "run.toml: expected a stage, found none", "[[stages]]"),
        (SMALL.split("[")[0], "run.toml: expected a source, found none", "below `[sources]`"),
        (SMALL.replace('web = "web"', ""), "run.toml: sources: expected a source, found none", "below `[sources]`"),
        (
            SMALL.replace("[[stages]]", "[stages]"),
            "run.toml: stages: expected `stages` to be a list of tables",
            "[[stages]]",
        ),
        (SMALL.replace("[sources]", "[[sources]]"), "run.toml: sources: expected `sources` to be a table", "web ="),
        ("samples = 1\n" + SMALL, "run.toml: samples: expected `samples` to be a table, found 1", None),
        ("denied = 1\n" + SMALL, "run.toml: denied: expected `denied` to be a list of tables, found 1", "[[denied]]"),
        ("stages = []\n" + SMALL.split("[[")[0], "run.toml: stages: expected a stage, found none", "[[stages]]"),
    ],
)
def test_what_is_missing(text, words, hint):
    error = error_of(text)
    assert error.message.startswith(words)
    assert hint is None or hint in (error.hint or "")


@pytest.mark.parametrize("count", [2000, pytest.param(40_000, marks=pytest.mark.slow)])
def test_thousands_of_sources(count):
    names = [f"source_{number}" for number in range(count)]
    sources = "".join(f'{name} = {{ data = "data/{name}/*_document", holdout = "0.1%" }}\n' for name in names)
    weights = ", ".join(f"{name} = {number % 7 + 0.5}" for number, name in enumerate(names))
    text = f"order = 1\nseed = 1\n[sources]\n{sources}[[stages]]\nsequence_length = 8\nweights = {{ {weights} }}\n"
    assert len(parse_run(text, path="run.toml").stages[0].weights or ()) == count


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
    assert re.match("run.toml:|`run.toml` ", fault_of(text))


def stage_of(keys: str) -> StageSettings:
    return parse_run(SMALL + keys, path="run.toml").stages[0]


@pytest.mark.parametrize(
    ("keys", "num_samples"),
    [
        ("tokens = 8", 1),
        ("tokens = 15", 1),
        ('tokens = "1K"', 125),
        ("samples = 7", 7),
        ('samples = "7K"', 7000),
        ("", None),
    ],
)
def test_samples_of_a_stage(keys, num_samples):
    assert stage_of(keys).num_samples == num_samples
    assert stage_of(keys).is_endless == (num_samples is None)


def test_later_stages_have_the_sequence_length_of_the_one_before():
    more = "samples = 1\n" + "[[stages]]\nsamples = 1\nweights = { web = 1 }\n" * 2
    longer = more.replace("[[stages]]", "[[stages]]\nsequence_length = 16", 1)
    for text, lengths in ((more, [8, 8, 8]), (longer, [8, 16, 16])):
        assert [stage.sequence_length for stage in parse_run(SMALL + text, path="run.toml").stages] == lengths


def test_two_stages_of_one_name():
    text = SMALL + 'name = "a"\nsamples = 1\n[[stages]]\nname = "a"\nweights = { web = 1 }\n'
    assert error_of(text).message == (
        "run.toml: stages.2.name: expected another name than 'a', which stage 1 of the file has"
    )


@pytest.mark.parametrize("name", ["web", "a b", "été", "1", "a.b", "x" * 200])
def test_names(name):
    assert name_of(name, "a name") == name


@pytest.mark.parametrize("name", ["", " a", "a ", "a\nb", "a\0", "a\u2028b", "x" * 201])
def test_what_is_no_name(name):
    with pytest.raises(ConfigError, match="expected a name to be a "):
        name_of(name, "a name")


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
    assert error.message == "run.toml: samples.fim_rate: expected `fim_rate` in [0, 1], found 1.5"
    sft = 'dataset = "sft"\n' + SMALL + '[samples]\ntrain_on = "everything"\ncontext_parallel_size = 2\n'
    samples = parse_run(sft, path="run.toml").samples
    assert (samples["train_on"], samples["context_parallel_size"]) == ("everything", 2)
    assert "one of 'answers'" in error_of(sft.replace("everything", "nothing")).message
    assert "builds" not in (error_of(sft.replace("train_on", "schema")).hint or "")
    error = error_of('windows = "best_fit"\n' + sft)
    assert error.message.startswith('run.toml: windows: expected no `windows` for dataset "sft"')


MEGATRON = SMALL.replace("order = 1", 'order = "megatron"').replace("weights", "samples = 100\nweights")


def test_the_order_of_the_reference():
    assert parse_run(MEGATRON, path="run.toml").order == "megatron"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('documents = "file"\n' + MEGATRON, "run.toml: documents: expected no `documents` with"),
        ('windows = "concat"\n' + MEGATRON, "run.toml: windows: expected no `windows` with"),
        ('mix = "even"\n' + MEGATRON, "run.toml: mix: expected no `mix` with"),
        ("mixing_block = 1\n" + MEGATRON, "run.toml: mixing_block: expected no `mixing_block` with"),
        (MEGATRON + '[[denied]]\ndocuments = "x"\n', "run.toml: denied: expected no `denied` with"),
        (MEGATRON.replace("seed = 1", f"seed = {2**32}"), "run.toml: seed: expected `seed` in [0, 2**32) with"),
        (
            MEGATRON.replace('"web"', '{ data = "web", holdout = 0.1 }'),
            "run.toml: sources.web.holdout: expected no `holdout` of source",
        ),
        (
            MEGATRON.replace('"web"', '{ data = "web", max_passes = 2 }'),
            "run.toml: sources.web.max_passes: expected no `max_passes` of",
        ),
        (MEGATRON + "[[stages]]\nsamples = 1\nweights = { web = 1 }", "run.toml: stages.2: expected one stage with"),
        (MEGATRON + 'on_exhausted = "repeat"', "run.toml: stages.1.on_exhausted: expected no `on_exhausted`"),
        (MEGATRON.replace("samples = 100", ""), "run.toml: stages.1: expected `tokens` or `samples` with"),
        (MEGATRON.replace("samples = 100\nweights", "passes"), "run.toml: stages.1.passes: expected no `passes`"),
    ],
)
def test_what_the_order_of_the_reference_cannot_do(text, words):
    error = error_of(text)
    assert error.message.startswith(words)
    assert "reference" in error.message or "seed" in words


def test_a_document_that_is_named_twice_is_denied_once():
    text = SMALL + '[[denied]]\ndocuments = ["web:2", "web:1", "web:2"]\n'
    assert parse_run(text, path="run.toml").denied[0].documents == (("web", 1), ("web", 2))
    assert (
        "run.toml: denied.1.documents: expected `documents` of [[denied]] to be the name"
        in error_of(text.replace('"web:1"', "[]")).message
    )
