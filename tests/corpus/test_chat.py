import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.corpus.jobs import files_of, interrupt_after, messages, preprocess_chat
from tests.inputs.corpora import write_parquet
from tests.preprocess.corpus import (
    EOD,
    byte_level_json,
    documents_of,
    leftovers,
    make_tokenizer,
    word_level_json,
    write_lines,
)
from tests.support import StandInTokenizer, few_examples

from tokenloom.datasets.chat_config import SFTDatasetConfig
from tokenloom.datasets.conversations import SFTDataset
from tokenloom.datasets.exposure import SFTLowLevelDataset
from tokenloom.datasets.splits import Split
from tokenloom.errors import ConfigError, InputError, StuckRecordError, TokenizerError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.manifests import SpecialToken, read_manifest
from tokenloom.indexed.roles import PartKind, read_roles
from tokenloom.indexed.verify import verify_dataset
from tokenloom.inputs import ReadLimits

TALKS = [messages("Hi", "Ho", "Again?", "No."), messages("def f():", "return 1\n"), messages("Größe?", "👍🏽 é")]


def run(tmp_path, tokenizer, lines, **options):
    path = lines if isinstance(lines, Path) else write_lines(tmp_path / "chat.jsonl", lines)
    options = {"chat_template": "chatml", "overwrite": True, "restart": True, "num_processes": 1, **options}
    return preprocess_chat(path, tmp_path / "out", tokenizer, **options)


def jinja(tmp_path, source):
    path = tmp_path / "template.jinja"
    path.write_text(source)
    return str(path)


def shown(prefix, tokenizer):
    dataset = IndexedDataset(prefix)
    roles = read_roles(dataset)
    return [
        [(kind.name, tokenizer.detokenize(dataset[row][start:stop])) for start, stop, kind in roles.of(row)]
        for row in range(len(dataset))
    ]


def rejected(summary):
    return [json.loads(line) for line in Path(summary.rejected_paths[0]).read_text().splitlines()]


def test_answers_are_found_token_by_token(tmp_path, tokenizer):
    summary = run(tmp_path, tokenizer, TALKS)
    assert shown(summary.prefix, tokenizer)[0] == [
        ("prompt", "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"),
        ("answer", "Ho<|im_end|>"),
        ("prompt", "\n<|im_start|>user\nAgain?<|im_end|>\n<|im_start|>assistant\n"),
        ("answer", f"No.<|im_end|>{EOD}"),
    ]
    lasts = [("answer", f"return 1\n<|im_end|>{EOD}"), ("answer", f"👍🏽 é<|im_end|>{EOD}")]
    assert [parts[-1] for parts in shown(summary.prefix, tokenizer)[1:]] == lasts
    assert (summary.num_documents, summary.datasets[0].num_sequences, summary.num_rejected) == (3, 3, 0)
    roles = read_roles(IndexedDataset(summary.prefix))
    answers = [stop - start for row in range(3) for start, stop, kind in roles.of(row) if kind is PartKind.answer]
    assert summary.numbers["num_answer_tokens"] == sum(answers)
    manifest = read_manifest(summary.prefix)
    assert (manifest.options["schema"], manifest.options["chat_template"]["name"]) == ("messages", "chatml")
    assert (summary.dtype, manifest.tokenizer.eod) == ("uint16", SpecialToken(id=tokenizer.eod, text=EOD))
    assert verify_dataset(summary.prefix).problems == ()
    for row, talk in enumerate(TALKS):
        text = "\n".join(f"<|im_start|>{turn['role']}\n{turn['content']}<|im_end|>" for turn in talk["messages"])
        assert IndexedDataset(summary.prefix)[row].tolist() == [*tokenizer.tokenize(text), tokenizer.eod]


def test_a_token_that_reaches_into_the_answer_belongs_to_it(tmp_path, tokenizer):
    newline, indented = tokenizer.tokenize("\n"), tokenizer.tokenize("\n    x")
    assert indented[0] != newline[0]  # the newline before the answer and its spaces are one token
    [parts] = shown(run(tmp_path, tokenizer, [messages("Hi", "    x")]).prefix, tokenizer)
    prompt = ("prompt", "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant")
    assert parts == [prompt, ("answer", f"\n    x<|im_end|>{EOD}")]


def test_an_end_that_is_there_is_not_repeated(tmp_path, tokenizer):
    template = jinja(tmp_path, "{% for m in messages %}{{ m.content }}{{ '<|endoftext|>' }}{% endfor %}")
    summary = run(tmp_path, tokenizer, [messages("Hi", "Ho")], chat_template=template)
    assert shown(summary.prefix, tokenizer) == [[("prompt", f"Hi{EOD}"), ("answer", f"Ho{EOD}")]]


BAD = [
    (b"{not json", "not JSON: "),
    ({"messages": []}, "the conversation under 'messages' is empty"),
    ({"messages": [{"role": "alien", "content": "x"}]}, "`role` must be one of"),
    (messages("Hi"), "the conversation has no assistant turn to train on"),
    ({"text": "abc"}, "no key 'messages'; found 'text'"),
    ([1], "expected an object, found an array"),
    (b"null", "expected an object, found null"),
]


def test_bad_lines_are_set_aside_with_their_reasons(tmp_path, tokenizer):
    with pytest.raises(InputError, match=rf"chat\.jsonl` line 3: {BAD[1][1]}"):
        run(tmp_path, tokenizer, [TALKS[0], b"", BAD[1][0]])
    assert leftovers(tmp_path, tmp_path / "chat.jsonl") == []
    summary = run(tmp_path, tokenizer, [TALKS[0], *(line for line, _ in BAD), b"", TALKS[1]], skip_bad_lines=True)
    assert (summary.datasets[0].num_sequences, summary.num_rejected, summary.num_blank_lines) == (2, len(BAD), 1)
    records = rejected(summary)
    assert [record["line"] for record in records] == list(range(2, 2 + len(BAD)))
    for record, (_, reason) in zip(records, BAD, strict=True):
        assert reason in record["reason"]
    assert records[0]["text"] == "{not json"


def test_nothing_but_bad_lines_and_settings_that_cannot_be_are_refused(tmp_path, tokenizer):
    with pytest.raises(InputError, match="no conversations found: 0 blank lines, 0 bad records"):
        run(tmp_path, tokenizer, [])
    with pytest.raises(ConfigError, match=r"none of the schemas messages, .* fits the columns body"):
        run(tmp_path, tokenizer, [{"body": "x"}])
    with pytest.raises(TokenizerError, match="has no chat template"):
        run(tmp_path, tokenizer, TALKS, chat_template=None)
    with pytest.raises(ConfigError, match=r"`schema`.* 'messages', 'sharegpt', 'alpaca', 'text'"):
        run(tmp_path, tokenizer, TALKS, schema="chat")
    no_end = make_tokenizer(word_level_json().replace("</s>", "<stop>"))
    with pytest.raises(TokenizerError, match="has no configured or well-known token for `eod`"):
        run(tmp_path, no_end, TALKS)
    assert leftovers(tmp_path, tmp_path / "chat.jsonl") == []


def test_nulls_of_parquet_are_bad_rows(tmp_path, tokenizer):
    rows = [{"instruction": text, "output": answer} for text, answer in (("Hi", "Ho"), (None, "x"), ("y", None))]
    path = write_parquet(tmp_path / "chat.parquet", rows)
    with pytest.raises(InputError, match=r"chat\.parquet` row 2: no text under 'instruction'"):
        run(tmp_path, tokenizer, path)
    summary = run(tmp_path, tokenizer, path, skip_bad_lines=True)
    assert (summary.datasets[0].num_sequences, summary.num_rejected) == (1, 2)
    assert [json.loads(record["text"]) for record in rejected(summary)] == rows[1:]


def sft(path, tokenizer, *, sequence_length=128, **changes):
    options = {"random_seed": 1, "blend": ([str(path)], None), "split": "1,0,0", **changes}
    config = SFTDatasetConfig(sequence_length=sequence_length, tokenizer=tokenizer, **options)
    data = SFTDataset.build_low_level_dataset(str(path), config)
    return SFTDataset(data, str(path), np.arange(len(data), dtype=np.int32), None, Split.train, config)


def test_a_file_of_conversations_is_tokenized_once(tmp_path, tokenizer):
    path = write_lines(tmp_path / "chat.jsonl", TALKS)
    dataset = sft(path, tokenizer, chat_template="chatml")
    [pair] = (tmp_path / "cache").glob("*-chat.jsonl.bin")
    made = pair.stat().st_mtime_ns
    again = sft(path, tokenizer, chat_template="chatml", sequence_length=64)
    assert pair.stat().st_mtime_ns == made
    assert again.ledger().exposed == dataset.ledger().exposed
    write_lines(path, TALKS[:2])
    assert len(sft(path, tokenizer, chat_template="chatml").dataset) == 2
    with pytest.raises(ConfigError, match="is a raw file, which needs a Hugging Face tokenizer"):
        SFTLowLevelDataset(str(path), SFTDatasetConfig(random_seed=1, sequence_length=8, tokenizer=StandInTokenizer()))
    with pytest.raises(ConfigError, match=r"chat\.jsonl` is a raw file, which needs a `config`"):
        SFTLowLevelDataset(str(path))


WORDS = st.text(st.sampled_from("ab é👍\n<|im_end|>"), max_size=12)


@given(turns=st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=3), pad_is_eos=st.booleans())
@few_examples
def test_what_has_loss_is_what_the_assistant_says(tmp_path_factory, turns, pad_is_eos):
    tmp_path = tmp_path_factory.mktemp("chat")
    tokenizer = make_tokenizer(byte_level_json())
    tokenizer.special_tokens_dict = {"pad_token": tokenizer.eod if pad_is_eos else 1, "eos_token": tokenizer.eod}
    summary = run(tmp_path, tokenizer, [messages(*(text for turn in turns for text in turn))])
    parts = shown(summary.prefix, tokenizer)[0]
    dataset = SFTLowLevelDataset(summary.prefix)
    # An answer contains what the assistant says, and at most a merged newline before it.
    answers = [text for kind, text in parts if kind == "answer"]
    assert len(answers) == len(turns)
    for (_, said), found in zip(turns, answers, strict=True):
        assert found.removesuffix(EOD).lstrip("\n").endswith(f"{said.lstrip(chr(10))}<|im_end|>")
    assert dataset[0].tolist()[-1] == tokenizer.eod


PLAIN = "{% for m in messages %}{% if m.content != 'nothing' %}{{ m.content }} {% endif %}{% endfor %}"
FAILING = PLAIN + "{% if messages[0].content == 'bad' %}{{ EXPRESSION }}{% endif %}"


@pytest.mark.parametrize(
    ("expression", "turns", "reason"),
    [
        ("0", ("nothing", "nothing"), "rendered no text for conversation 1"),
        ("1 / 0", ("bad", "Ho"), "failed: "),
        ("2.0 ** 100000", ("bad", "Ho"), "failed: "),
    ],
)
def test_a_line_that_is_not_rendered_leaves_its_neighbours_whole(tmp_path, tokenizer, expression, turns, reason):
    template = jinja(tmp_path, FAILING.replace("EXPRESSION", expression))
    lines = [messages("Hi", "Ho"), messages(*turns), messages("More", "No")]
    with pytest.raises(InputError, match=rf"line 2: .*template\.jinja {reason}"):
        run(tmp_path, tokenizer, lines, chat_template=template)
    summary = run(tmp_path, tokenizer, lines, chat_template=template, skip_bad_lines=True)
    first, last = shown(summary.prefix, tokenizer)
    assert first == [("prompt", "Hi "), ("answer", f"Ho {EOD}")]
    assert last == [("prompt", "More"), ("answer", f" No {EOD}")]
    assert summary.num_rejected == 1


def test_a_conversation_without_tokens_is_a_bad_record(tmp_path):
    words = make_tokenizer(word_level_json())
    template = jinja(tmp_path, "{% for m in messages %}{{ m.content | trim }} {% endfor %}")
    lines = [messages("alpha", "beta"), messages(" ", " "), messages("beta", "alpha")]
    summary = run(tmp_path, words, lines, chat_template=template, skip_bad_lines=True)
    assert documents_of(summary.prefix) == [[[2, 3, 1]], [[3, 2, 1]]]
    [record] = rejected(summary)
    assert (record["line"], record["reason"]) == (2, "the conversation or text has no tokens")


def test_records_that_are_too_long_are_bad_ones(tmp_path, tokenizer):
    def done(lines, **options):
        summary = run(tmp_path, tokenizer, lines, skip_bad_lines=True, **options)
        return read_manifest(summary.prefix).options["schema"], summary.num_documents, summary.num_rejected

    long = messages("Hi", "x" * 300)
    with pytest.raises(InputError, match=f"`{tmp_path}/chat.jsonl` line 2: longer than 300 bytes"):
        run(tmp_path, tokenizer, [TALKS[0], long], max_record_bytes=300)
    assert done([TALKS[0], long, TALKS[1]], max_record_bytes=300) == ("messages", 2, 1)
    chat = {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Ho"}]}
    assert done([long, chat], max_record_bytes=300) == ("sharegpt", 1, 1)
    assert done([TALKS[0], long]) == ("messages", 2, 0)
    lines = [TALKS[0]] * 10 + [{"text": "plain"}] * 10  # the first record decides the schema of all shards
    assert done(lines, shard_bytes=100) == ("messages", 10, 10)


@pytest.mark.parametrize("name", ["max_record_bytes", "memory_bytes", "max_window_bytes"])
def test_limits_that_nothing_can_be_read_within_are_refused(name):
    with pytest.raises(ConfigError, match=name):
        ReadLimits(**{name: 0})


def lines_with_faults(count):
    turns = [[f"Question {row}?", "word " * (row % 20), "More?", "No."][: 2 + 2 * (row % 2)] for row in range(count)]
    lines: list[object] = [messages(*each) for each in turns]
    for number in range(7, count, 23):
        lines.insert(number, b"{bad %d" % number)
    return [*lines[: count // 2], b"", *lines[count // 2 :]]


@few_examples
@given(count=st.integers(1, 40), shard_bytes=st.integers(200, 3000), workers=st.integers(1, 3))
def test_bytes_depend_on_neither_shards_nor_threads(tmp_path_factory, tokenizer, count, shard_bytes, workers):
    whole_folder, cut_folder = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("cut")
    lines, cut_options = lines_with_faults(count), {"shard_bytes": shard_bytes, "num_workers": workers}
    whole = run(whole_folder, tokenizer, lines, skip_bad_lines=True)
    cut = run(cut_folder, tokenizer, lines, skip_bad_lines=True, **cut_options)
    for name in ("out.bin", "out.idx", "out.roles.npy"):
        assert (cut_folder / name).read_bytes() == (whole_folder / name).read_bytes()
    for name in ("num_documents", "num_tokens", "numbers", "num_rejected", "num_blank_lines"):
        assert getattr(cut, name) == getattr(whole, name)
    assert not (cut_folder / "out.job").exists()


def test_an_interrupted_job_goes_on(tmp_path, tokenizer):
    path = write_lines(tmp_path / "chat.jsonl", lines_with_faults(200))
    options = {"shard_bytes": 2000, "skip_bad_lines": True, "restart": False}
    run(tmp_path, tokenizer, path, skip_bad_lines=True)
    expected = files_of(tmp_path)
    for each in tmp_path.glob("out*"):
        each.unlink()
    interrupt_after(12, tmp_path, tokenizer, path, job=run, **options)
    assert len([*(tmp_path / "out.job").glob("*.roles.npy")]) >= 2
    with pytest.raises(ConfigError, match=r"other settings: chat_template .*; schema was 'messages', is 'text'"):
        run(tmp_path, tokenizer, path, schema="text", **options)
    assert run(tmp_path, tokenizer, path, **options).num_shards_reused > 0
    assert files_of(tmp_path) == expected


def test_a_template_that_loops_on_the_first_record_is_named_with_the_limit(tmp_path, tokenizer):
    template = jinja(tmp_path, "{% for i in range(999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}")
    message = r"template\.jinja takes longer than 0\.5 seconds for the first record of `.*chat\.jsonl`"
    with pytest.raises(StuckRecordError, match=message) as caught:
        run(tmp_path, tokenizer, TALKS, chat_template=template, record_timeout_seconds=0.5)
    assert "`record_timeout_seconds`" in caught.value.hint
    assert leftovers(tmp_path, tmp_path / "chat.jsonl", tmp_path / "template.jinja") == []
