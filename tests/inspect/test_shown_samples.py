"""Samples as spans and tokens, with loss."""

from __future__ import annotations

import tempfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.runs import RUN, write_run
from tests.datasets.conversations import (
    ANSWER,
    FIRST,
    PROMPT,
    conversation,
    conversations_strategy,
    make_sft,
    make_varlen,
    write_conversations,
)
from tests.indexed.origins import add_origins
from tests.inspect.drawn import columns_of, origins_of
from tests.run.folders import make_megatron, opened
from tests.support import EOD, StandInTokenizer, make_config, make_dataset, write_corpus

from tokenloom import BlendedDataset
from tokenloom.datasets.fim import GPTFIMDataset, GPTFIMDatasetConfig
from tokenloom.datasets.splits import Split
from tokenloom.errors import ConfigError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.inspect.shown import OpenPair, OpenPairs, shown_document, shown_sample
from tokenloom.run.run import Run

CORPUS = [[1, 2, 3, EOD], [], [4, 5, 6, 7, 8, EOD], [10, 11, 12, 13, EOD]]


class Letters(StandInTokenizer):
    """Decodes 1 to a, 2 to b, and so on."""

    def detokenize(self, ids):
        return "".join(chr(ord("a") + token - 1) for token in ids)


@pytest.fixture
def prefix(tmp_path):
    return write_corpus(tmp_path / "corpus", CORPUS)


def names(shown):
    return columns_of(shown).kind


def slots_of(shown, number):
    return [slot for slot, token in enumerate(shown.tokens) if token.span == number]


def check(shown, sample):
    """Checks a sample whose tokens are in the order of their documents."""
    size = len(sample["tokens"])
    tokens = columns_of(shown)
    assert tokens.id[:size] == sample["tokens"].tolist()
    assert tokens.loss == [False, *(sample["loss_mask"] > 0)][: len(tokens.loss)]
    taught = [slot for slot, trained in enumerate(tokens.loss) if trained]
    assert [tokens.id[slot] for slot in taught] == [int(sample["labels"][slot - 1]) for slot in taught]
    for number, span in enumerate(shown.spans):
        slots = slots_of(shown, number)
        assert slots == [*range(span.slot, span.slot + span.stop - span.start)]
        if span.denied:
            assert {tokens.kind[slot] for slot in slots} == {"denied"}
        else:
            whole = OpenPair(span.prefix).data.get(span.row)
            assert [tokens.id[slot] for slot in slots] == whole[span.start : span.stop].tolist()
    nowhere = slots_of(shown, None)
    assert {tokens.kind[slot] for slot in nowhere} <= {"padding"}
    assert not any(tokens.loss[slot] for slot in nowhere)


def test_a_window_is_its_documents_with_the_label_of_its_last_token(prefix):
    dataset = make_dataset(prefix, sequence_length=8, indices=[0, 1, 2, 3])
    shown = shown_sample(dataset, 0, Letters())
    assert (shown.heading, shown.notes, len(shown.tokens), shown.num_tokens) == ("position 0", (), 9, 9)
    assert dict(shown.facts) == {
        "source": prefix, "pass": "0", "window": "0", "tokens": "9", "with loss": "8", "padding": "0",
    }  # fmt: skip
    for k in range(len(dataset)):
        check(shown_sample(dataset, k, Letters()), dataset.sample(k))


def test_the_pad_id_in_the_data_is_told(prefix):
    dataset = make_dataset(prefix, sequence_length=5, indices=[2], tokenizer=Letters(pad=6))
    shown = shown_sample(dataset, 0, Letters(pad=6))
    assert shown.notes == ("the data contains the pad id, 6, 1 time: read as id 0 without loss",)
    assert columns_of(shown).id == [4, 5, 0, 7, 8, EOD]
    assert columns_of(shown).loss == [False, True, False, True, True, True]
    assert columns_of(shown).span == [0] * 6


def test_records_are_told_where_they_are_known(prefix):
    add_origins(prefix, origins_of("raw/web.jsonl", [(0, 3), (0, 4), (0, 5), (-1, 0)]))
    spans = shown_sample(make_dataset(prefix, sequence_length=14, indices=[0, 1, 2, 3]), 0, None).spans
    assert {(span.document, span.origin) for span in spans} == {
        (0, "raw/web.jsonl:3"), (2, "raw/web.jsonl:5"), (3, None),
    }  # fmt: skip


TEXTS = ["def first(): return 1", "x", "", "class Second: pass", "end"]


class Characters(StandInTokenizer):
    """A token is a character; what fill in the middle needs is beyond all of them."""

    def __init__(self):
        super().__init__(eod=0, vocab_size=1100)

    def tokenize(self, text):
        return [ord(char) for char in text]

    def detokenize(self, ids):
        return "".join(map(chr, ids))


def make_fim(folder, *, rate):
    prefix = write_corpus(folder / "texts", [[*map(ord, text), 0] if text else [] for text in TEXTS])
    fim = {"fim_rate": rate, "fim_spm_rate": 0.5}
    fim |= {"fim_extra_tokens": {"prefix": 1001, "middle": 1002, "suffix": 1003}, "window_policy": "best_fit"}
    config = make_config(prefix, kind=GPTFIMDatasetConfig, sequence_length=100, tokenizer=Characters(), **fim)
    indices = np.arange(len(TEXTS), dtype=np.int32)
    return GPTFIMDataset(IndexedDataset(prefix), prefix, indices, None, Split.train, config)


def test_of_rearranged_documents_spans_are_only_listed(tmp_path):
    dataset = make_fim(tmp_path, rate=1.0)
    shown = shown_sample(dataset, 0, Characters())
    assert shown.notes[0].startswith("the tokens are not in the order of their documents")
    assert len(shown.spans) == 4
    assert set(columns_of(shown).span) == {None}
    stop = names(shown).index("padding")
    assert set(names(shown)[stop:]) == {"padding"}
    assert "".join(columns_of(shown).text[:stop]) == "".join(map(chr, dataset.sample(0)["tokens"][:stop]))
    assert names(shown)[stop - 1] == "eod"
    assert columns_of(shown).loss[1:] == (dataset.sample(0)["loss_mask"] > 0).tolist()[: len(shown.tokens) - 1]


def test_conversations_tell_prompts_from_answers(tmp_path):
    second = conversation((PROMPT, [21]), (ANSWER, [22, 9]))
    dataset = make_sft(write_conversations(tmp_path / "chat", [FIRST, second]))
    shown = shown_sample(dataset, 0, None)
    tokens = columns_of(shown)
    assert tokens.id[:7] == [11, 12, 13, 9, 21, 22, 9]
    assert tokens.part[:7] == ["prompt", "prompt", "answer", "answer", "prompt", "answer", "answer"]
    assert tokens.loss == [False, False, True, True, False, True, True, False]
    assert names(shown)[7] == "padding"
    *_, last = shown.sections()
    assert (last.span, len(last.runs)) == (None, 1)


@pytest.mark.parametrize("multiple", [1, 4])
@pytest.mark.parametrize("last", [ANSWER, PROMPT])
def test_the_last_token_of_a_conversation_may_be_a_label_only(tmp_path, multiple, last):
    talk = conversation((PROMPT, [21]), (ANSWER, [22, 23]), (last, [24, 25]))
    dataset = make_varlen(write_conversations(tmp_path / "chat", [talk]), context_parallel_size=multiple // 2 or 1)
    shown = shown_sample(dataset, 0, None)
    tokens = columns_of(shown)
    assert tokens.id[:5] == [21, 22, 23, 24, 25]
    assert tokens.loss[:5] == [False, True, True, last == ANSWER, last == ANSWER]
    assert tokens.span[:5] == [0] * 5
    assert set(names(shown)[5:]) <= {"padding"}


@given(conversations_strategy(), st.booleans())
def test_conversations_are_shown_as_they_are_fed(conversations, single):
    with tempfile.TemporaryDirectory() as folder:
        prefix = write_conversations(f"{folder}/chat", conversations)
        try:
            dataset = (make_varlen if single else make_sft)(prefix, quiet=True, sequence_length=16)
        except ConfigError:  # nothing to train
            return
        for k in range(len(dataset)):
            shown, sample = shown_sample(dataset, k, None), dataset.sample(k)
            assert shown.notes == ()
            tokens = columns_of(shown)
            assert tokens.loss == [False, *(sample["loss_mask"] > 0)][: len(tokens.loss)]
            taught = [slot for slot, trained in enumerate(tokens.loss) if trained]
            assert [tokens.id[slot] for slot in taught] == [int(sample["labels"][slot - 1]) for slot in taught]
            for number, span in enumerate(shown.spans):
                whole = columns_of(shown_document(OpenPair(prefix), span.row, None))
                slots = slots_of(shown, number)
                assert [tokens.id[slot] for slot in slots] == whole.id[: len(slots)]
                assert [tokens.part[slot] for slot in slots] == whole.part[: len(slots)]
                assert len(slots) == span.stop - span.start


def test_blends_are_shown_by_their_datasets(tmp_path, prefix):
    other = write_corpus(tmp_path / "other", [[20, 21, 22, 23, 24]])
    members = [make_dataset(each, sequence_length=3, indices=[0]) for each in (prefix, other)]
    blend = BlendedDataset(members, [1, 1], 2, make_config(prefix))
    for k in range(len(blend)):
        sample = blend.sample(k)
        shown = shown_sample(blend, k, None)
        check(shown, sample)
        assert dict(shown.facts)["source"] == (prefix, other)[int(sample["dataset_id"])]


def test_positions_of_a_run(tmp_path):
    dataset = Run.open(write_run(tmp_path)).dataset()
    for position in range(0, 100, 9):
        shown, place = shown_sample(dataset, position, None), dataset.place(position)
        check(shown, dataset.sample(position))
        facts = {"source": place.source, "stage": "main", "window": f"{place.window:,}"}
        assert facts.items() <= dict(shown.facts).items()
        assert {span.source for span in shown.spans} == {place.source}


def test_documents_that_are_denied_are_padding(tmp_path):
    pairs, dataset = OpenPairs(), Run.open(write_run(tmp_path / "before")).dataset()
    spans = [span for position in range(20) for span in shown_sample(dataset, position, None, pairs=pairs).spans]
    chosen = next(span.document for span in spans if span.source == "code")
    text = RUN + f'\n[[denied]]\ndocuments = ["code:{chosen}"]\n'
    dataset = Run.open(write_run(tmp_path / "after", text)).dataset()
    denied = 0
    for position in range(20):
        shown = shown_sample(dataset, position, None, pairs=pairs)
        check(shown, dataset.sample(position))
        for span in shown.spans:
            assert span.denied == (span.source == "code" and span.document == chosen)
            denied += span.denied
    assert denied


def test_a_run_in_the_order_of_the_reference(tmp_path):
    run = opened(make_megatron(tmp_path))
    dataset = run.dataset()
    for position in range(0, 300, 31):
        shown = shown_sample(dataset, position, None, run=run)
        check(shown, dataset.sample(position))
        assert dict(shown.facts)["source"] in ("web", "code")


def test_samples_of_another_kind_are_an_error():
    class Other:
        def __len__(self):
            return 1

        def __getitem__(self, index):
            return {"text": np.zeros(3)}

    with pytest.raises(ConfigError, match=r"^cannot show samples without 'labels', 'loss_mask', 'tokens'\n"):
        shown_sample(Other(), 0, None)


DOCUMENTS = st.lists(st.lists(st.integers(0, 99), max_size=12), min_size=1, max_size=6)


@given(
    DOCUMENTS.filter(lambda rows: sum(map(len, rows)) > 10),
    st.integers(2, 9),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["concat", "best_fit"]),
)
def test_spans_and_loss_are_those_of_the_sample(documents, length, masks, extra, policy):
    with tempfile.TemporaryDirectory() as folder:
        settings = {"sequence_length": length, "eod_mask_loss": masks, "add_extra_token_to_sequence": extra}
        dataset = make_dataset(write_corpus(f"{folder}/corpus", documents), window_policy=policy, **settings)
        for k in range(min(len(dataset), 8)):
            shown = shown_sample(dataset, k, Letters())
            assert shown.notes == ()
            check(shown, dataset.sample(k))
            assert {token.kind for token in shown.tokens if token.span is not None and token.id == EOD} <= {"eod"}
