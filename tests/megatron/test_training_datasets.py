"""`tokenloom.megatron.training.datasets`: datasets recorded with Megatron 0.19.2, samplers and the data loader."""

import json
import pickle
import random
import sys
from argparse import Namespace
from enum import Enum
from functools import partial

import numpy as np
import pytest
import torch
from tests.inputs.corpora import write_parquet
from tests.support import StandInTokenizer, equal_samples, make_config, write_corpus
from torch.utils.data import DataLoader

from tokenloom.datasets.splits import Split
from tokenloom.errors import InputError, MissingExtraError, ResonanceWarning
from tokenloom.loading.samplers import DataParallelSampler
from tokenloom.megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from tokenloom.megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from tokenloom.megatron.core.datasets.indexed_dataset import IndexedDataset
from tokenloom.megatron.training.datasets import data_samplers
from tokenloom.megatron.training.datasets.data_samplers import HybridCPMegatronPretrainingSampler as Hybrid
from tokenloom.megatron.training.datasets.data_samplers import MegatronFullValidationSampler as Full
from tokenloom.megatron.training.datasets.data_samplers import MegatronPretrainingRandomSampler as Shuffled
from tokenloom.megatron.training.datasets.data_samplers import MegatronPretrainingSampler as Ordered
from tokenloom.megatron.training.datasets.data_samplers import RandomSeedDataset, build_pretraining_data_loader
from tokenloom.megatron.training.datasets.fim_dataset import GPTFIMDataset, GPTFIMDatasetConfig
from tokenloom.megatron.training.datasets.sft_dataset import MockSFTDataset, SFTDataset, SFTLowLevelDataset
from tokenloom.megatron.training.datasets.utils import JsonRecords, ParquetRecords
from tokenloom.megatron.training.datasets.varlen_dataset import (
    MockVarlenDataset,
    VarlenDataset,
    VarlenLowLevelDataset,
    _select_converter,
)

ROLES = {"system": 200, "user": 201, "assistant": 202, "tool": 203}
PAD, EOD = 0, 210
IGNORED = -100
MASKS = ("reset_position_ids", "reset_attention_mask", "eod_mask_loss", "create_attention_mask")


class ConversationTokenizer:
    """Encodes a turn as the id of its role, its characters, and EOD; only the assistant's turns have targets."""

    vocab_size = 256
    pad = PAD
    eod = EOD
    special_tokens_dict: dict[str, int] = {}  # noqa: RUF012
    unique_identifiers = {"class": "ConversationTokenizer"}  # noqa: RUF012

    def tokenize(self, text):
        return [ord(character) for character in text]

    def tokenize_conversation(self, conversation, return_target, add_generation_prompt):
        assert return_target
        assert not add_generation_prompt
        turns = [(turn["role"], [ROLES[turn["role"]], *self.tokenize(turn["content"]), EOD]) for turn in conversation]
        tokens = [token for _, turn in turns for token in turn]
        targets = [token if role == "assistant" else IGNORED for role, turn in turns for token in turn]
        return np.array(tokens), np.array(targets)


def turns(**texts):
    return [{"role": role, "content": text} for role, text in texts.items()]


def config_of(**settings):
    plain = {"random_seed": 1, "tokenizer": ConversationTokenizer(), **dict.fromkeys(MASKS, False)}
    return GPTDatasetConfig(**plain | settings)


def dataset_of(kind, lines, config, num_samples=None):
    return kind(lines, "lines", np.arange(len(lines), dtype=np.int32), num_samples, Split.train, config)


def lists(sample):
    return {name: tensor.tolist() for name, tensor in sample.items()}


def write_lines(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


SHORT, LONG = turns(system="", user="a", assistant="bc"), turns(system="s", user="d", assistant="efg")
"""10 and 12 tokens."""


def make(lines, kind=SFTDataset, *, num_samples=None, **settings):
    given = {"sequence_length": 24, "blend": (["lines"], None), "split": "1,0,0"}
    return dataset_of(kind, lines, config_of(**given | settings), num_samples)


def test_a_conversation_and_its_padding():
    sample = make([SHORT], sequence_length=12)[0]
    a, b, c = map(ord, "abc")
    system, user, assistant, _ = ROLES.values()
    assert lists(sample) == {
        "tokens": [system, EOD, user, a, EOD, assistant, b, c, EOD, PAD, PAD, PAD],
        "labels": [IGNORED] * 4 + [assistant, b, c, EOD] + [PAD] * 4,
        "loss_mask": [0] * 4 + [1] * 4 + [0] * 4,
        "position_ids": list(range(12)),
        "cu_seqlens": [0, 12] + [12] * 11,
        "max_seqlen": 12,
    }
    kinds = [torch.int64, torch.int64, torch.float32, torch.int64, torch.int32, torch.int32]
    assert [tensor.dtype for tensor in sample.values()] == kinds


def test_conversations_of_a_line_share_a_sample():
    dataset = make([SHORT + LONG + SHORT], sequence_length=24)
    sample = dataset[0]
    assert sample["cu_seqlens"][:5].tolist() == [0, 9, 20, 24, 24]
    assert sample["position_ids"].tolist() == [*range(9), *range(11), *range(4)]
    assert (sample["max_seqlen"], sample["labels"][-1]) == (11, PAD)
    assert sample["loss_mask"].sum() == 4 + 5
    aligned = make([SHORT + LONG + SHORT], sequence_length=24, context_parallel_size=2)[0]
    assert aligned["cu_seqlens"][:4].tolist() == [0, 12, 24, 24]
    assert aligned["position_ids"].tolist() == [*range(12), *range(12)]
    full = make([SHORT + SHORT + LONG], sequence_length=18)[0]
    assert full["cu_seqlens"][:4].tolist() == [0, 9, 18, 18]


def test_a_pad_that_ends_texts_has_no_loss():
    tokenizer = ConversationTokenizer()
    tokenizer.pad = EOD
    tokenizer.special_tokens_dict = {"eos": EOD, "pad_token": EOD}
    with pytest.warns(UserWarning, match="also another special token"):
        dataset = make([SHORT], tokenizer=tokenizer)
    assert dataset[0]["loss_mask"].sum() == 3


def test_lines_are_read_in_order_and_repeated(tmp_path):
    records = [{"messages": SHORT}, {"messages": LONG, "id": 7}, {"messages": SHORT}]
    path, cache = write_lines(tmp_path / "lines.jsonl", records), str(tmp_path / "cache")
    config = config_of(sequence_length=12, blend=([path], None), split="2,1,0", path_to_cache=cache)
    train, valid, test = BlendedMegatronDatasetBuilder(SFTDataset, [5, 2, 0], lambda: True, config).build()
    expected = [lists(make([line], sequence_length=12)[0]) for line in (SHORT, LONG)]
    assert [lists(train[k]) for k in range(len(train))] == [expected[k % 2] for k in range(5)]
    assert [lists(valid[k]) for k in range(2)] == [expected[0]] * 2
    assert test is None
    assert lists(pickle.loads(pickle.dumps(train))[1]) == expected[1]
    (batch, *_) = DataLoader(train, batch_size=2)
    assert batch["tokens"].tolist() == [sample["tokens"] for sample in expected]


def test_errors(tmp_path):
    low_level = SFTLowLevelDataset(write_lines(tmp_path / "lines.jsonl", [{"messages": SHORT}, {"text": "none"}]))
    with pytest.raises(ValueError, match=r"lines.jsonl`: record 1 has no `messages`, only keys text"):
        low_level[1]
    with pytest.raises(ValueError, match="sample 0 has no conversation"):
        make([[]])[0]
    with pytest.raises(AssertionError, match="`create_attention_mask`: must be False"):
        make([SHORT], create_attention_mask=True)[0]
    with pytest.raises(AssertionError, match="StandInTokenizer has no `tokenize_conversation`"):
        make([SHORT], tokenizer=StandInTokenizer(pad=0, eod=1))[0]


def test_overridden_hooks_are_called():
    class Whole(SFTDataset):
        def _split_conversations(self, merged_conversations):
            return [list(merged_conversations)]

        def __getitem__(self, idx):
            return {**super().__getitem__(idx), "number": torch.tensor(idx)}

    dataset = make([SHORT + LONG], Whole)
    (batch,) = DataLoader(dataset)
    assert batch["cu_seqlens"][0, :3].tolist() == [0, 24, 24]
    assert batch["number"].tolist() == [0]


def make_mock(settings):
    config = config_of(sequence_length=16, sft_mock_dataset_config_json=settings)
    low_level = MockSFTDataset.build_low_level_dataset(None, config)
    return MockSFTDataset(low_level, None, np.arange(40, dtype=np.int32), 40, Split.train, config)


def test_mock_texts_of_a_distribution():
    dataset = make_mock(None)
    lengths = [len(dataset[k]["tokens"]) for k in range(len(dataset))]
    assert lengths == dataset.dataset.sequence_lengths[:40].tolist()
    assert (min(lengths), max(lengths)) == (8, 16)
    sample = dataset[0]
    assert sample["tokens"].tolist() == [*range(1, lengths[0]), EOD]
    assert sample["labels"].tolist() == [*range(2, lengths[0]), EOD, PAD]
    assert sample["cu_seqlens"].tolist() == [0, lengths[0]]
    assert sample["loss_mask"].tolist() == [1] * (lengths[0] - 1) + [0]


def test_mock_texts_with_lengths_of_a_file_and_of_a_pair(tmp_path):
    (tmp_path / "lengths.csv").write_text("length\n3\n40\n")
    settings = f'{{"mode": "file", "path": "{tmp_path}/lengths.csv", "format": "sbhd"}}'
    (tmp_path / "settings.json").write_text(settings)
    for given in (settings, str(tmp_path / "settings.json")):
        dataset = make_mock(given)
        assert dataset[0]["tokens"].tolist() == [1, 2, EOD] + [PAD] * 13
        assert dataset[1]["tokens"].tolist() == [*range(1, 16), EOD]
        assert "cu_seqlens" not in dataset[0]
    prefix = write_corpus(tmp_path / "corpus", [[11, 12], [13], [14, 15, 16]])
    settings = f'{{"mode": "verification", "data_path": "{prefix}", "min_seq_len": 4, "max_seq_len": 4}}'
    dataset = make_mock(settings)
    assert dataset[0]["tokens"].tolist() == [11, 12, 13, EOD]
    assert dataset[2]["tokens"].tolist() == [14, 15, 16, EOD]
    with pytest.raises(AssertionError, match=r"`mode`: must be 'file'.*got 'odd'"):
        make_mock('{"mode": "odd"}')
    with pytest.raises(KeyError, match="mean_seq_len"):
        make_mock('{"mode": "distribution", "type": "lognormal"}')


RECORDS = {
    "openai-messages": (
        {"messages": [{"role": "user", "content": "a", "name": "x"}, {"role": "assistant", "content": None}]},
        turns(system="", user="a", assistant=""),
    ),
    "sharegpt": (
        {"conversations": [{"from": "system", "value": "s"}, {"from": "Human", "value": "a"}, {"from": "odd"}]},
        [*turns(system="s", user="a"), *turns(user="")],
    ),
    "alpaca": (
        {"instruction": "", "query": "do", "input": "this", "answer": "b"},
        turns(system="", user="do\n\nthis", assistant="b"),
    ),
    "pretrain-text": ({"text": "abc", "url": "x"}, "abc"),
}


@pytest.mark.parametrize("schema", RECORDS)
def test_schemas(tmp_path, schema):
    record, expected = RECORDS[schema]
    low_level = VarlenLowLevelDataset(write_lines(tmp_path / "lines.jsonl", [record]))
    assert (low_level.schema_name, len(low_level), low_level[0]) == (schema, 1, expected)


def test_invalid_records_of_schemas():
    for record in ({"messages": [{"content": [1]}]}, {"text": 5}, {"prompt": ["a"], "output": "b"}):
        convert, _ = _select_converter([*record])
        with pytest.raises(ValueError, match="must be a string"):
            convert(record)
    with pytest.raises(ValueError, match="cannot infer schema from the columns a, b"):
        _select_converter(["b", "a"])
    assert _select_converter(["text", "instruction", "output"])[1] == "alpaca"


def make_varlen(lines, **settings):
    config = config_of(sequence_length=8, blend=(["lines"], None), split="1,0,0", **settings)
    return dataset_of(VarlenDataset, lines, config)


def make_mock_varlen(**settings):
    config = config_of(sequence_length=8, **settings)
    low_level = MockVarlenDataset.build_low_level_dataset(None, config)
    return MockVarlenDataset(low_level, None, np.arange(20, dtype=np.int32), None, Split.train, config)


def test_texts_are_padded_for_context_parallelism():
    dataset = make_varlen(["abc", "", "a", "abcdefghijkl"], context_parallel_size=2)
    a, b, c = map(ord, "abc")
    rows = {"tokens": [a, b, c, EOD], "labels": [b, c, EOD, PAD], "loss_mask": [1, 1, 1, 0]}
    lengths = {"original_seq_len": [3], "padded_seq_len": [4]}
    assert lists(dataset[0]) == rows | {"position_ids": [0, 1, 2, 3]} | lengths
    lengths = [(int(s["original_seq_len"]), int(s["padded_seq_len"])) for s in map(dataset.__getitem__, range(4))]
    assert lengths == [(3, 4), (1, 4), (1, 4), (8, 8)]
    assert dataset[3]["labels"].tolist() == [*map(ord, "bcdefgh"), EOD]
    assert lists(make_varlen(["abc"], hybrid_context_parallel=True, data_parallel_size=3)[0])["padded_seq_len"] == [6]


def test_prompts_have_no_loss():
    sample = make_varlen([turns(user="a", assistant="b")])[0]
    assert sample["labels"].tolist() == [IGNORED, IGNORED, ROLES["assistant"], ord("b"), EOD]
    assert sample["loss_mask"].tolist() == [0, 0, 1, 1, 1]

    sample = make_varlen(["abc"], varlen_sbhd_validation=True)[0]
    assert [*sample] == ["tokens", "labels", "loss_mask", "position_ids"]
    assert sample["tokens"].tolist() == [*map(ord, "abc"), EOD, PAD, PAD, PAD, PAD]
    assert sample["loss_mask"].tolist() == [1] * 3 + [0] * 5


def test_mock_texts():
    dataset = make_mock_varlen()
    lengths = [int(dataset[k]["original_seq_len"]) for k in range(20)]
    assert lengths == (dataset.dataset.sequence_lengths[:20] - 1).tolist()
    assert dataset[0]["tokens"].tolist() == [*range(1, lengths[0] + 1)]
    with pytest.raises(AssertionError, match="`varlen_sbhd_validation`: must be False for mock data"):
        make_mock_varlen(varlen_sbhd_validation=True)[0]


@pytest.mark.parametrize(
    ("text", "records"),
    [
        ('{"a": 1}\n{"b": 2}\n', [{"a": 1}, {"b": 2}]),
        ('\n{"a": 1}\r\n \n\n{"b": "\\n"}', [{"a": 1}, {"b": "\n"}]),
        ('[{"a": 1},\n {"b": 2}]\n', [{"a": 1}, {"b": 2}]),
        ("", []),
        ("{}", [{}]),
    ],
)
def test_json_records(tmp_path, text, records):
    (tmp_path / "file").write_text(text)
    found = JsonRecords(str(tmp_path / "file"))
    assert list(found) == list(pickle.loads(pickle.dumps(found))) == records
    assert (len(found), found.column_names) == (len(records), [key for record in records for key in record])
    assert [found[k] for k in range(-len(records), 0)] == records


def test_invalid_records_and_a_missing_library(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match="`datasets` is not installed"):
        VarlenLowLevelDataset("someone/texts")
    path = tmp_path / "file"
    for text, message in (('{"a": 1}\n{"a"\n', "1 is not JSON"), ("17\n", "0 must be a JSON object, got int")):
        path.write_text(text)
        with pytest.raises(InputError, match=f"file`: .*record {message}"):
            list(JsonRecords(str(path)))


def test_parquet_records(tmp_path):
    write_parquet(tmp_path / "rows.parquet", [{"text": "one", "n": 1}, {"text": None, "n": 2}])
    found = ParquetRecords(str(tmp_path / "rows.parquet"))
    assert found.column_names == ["text", "n"]
    assert list(pickle.loads(pickle.dumps(found))) == [{"text": "one", "n": 1}, {"text": None, "n": 2}]


SPECIAL = {"<p>": 90, "<m>": 91, "<s>": 92, "<pad>": 93, "<eod>": 94, "<split>": 95}
LETTERS = "abcdefghijklmnopqrstuvwxyz"
SHOWN = dict(zip(range(90, 96), "()|_.;", strict=True)) | dict(enumerate(LETTERS))


class Library:
    """The inner object of Megatron's tokenizers: one id per letter, and special tokens."""

    def ids_to_text(self, ids, remove_special_tokens=False):
        assert remove_special_tokens
        return "".join(LETTERS[number] for number in ids if number < 26)

    def text_to_ids(self, text):
        return [LETTERS.index(letter) for letter in text]

    def tokens_to_ids(self, tokens):
        return SPECIAL[tokens] if isinstance(tokens, str) else [SPECIAL[token] for token in tokens]


class Wrapper(StandInTokenizer):
    def __init__(self):
        super().__init__(pad=93, eod=94)
        self._tokenizer = Library()
        self.tokenize = self.detokenize = lambda _: None  # not called


class Own(StandInTokenizer):
    def __init__(self):
        super().__init__(pad=93, eod=94)
        self.tokens_to_ids, self.tokenize = Library().tokens_to_ids, Library().text_to_ids
        self.detokenize = partial(Library().ids_to_text, remove_special_tokens=True)


@pytest.fixture
def letters(tmp_path):
    texts = ["abcdef.", "ghij;klm;;n..", "o.", "pqrstuvwxyz."]
    tokens = {shown: number for number, shown in SHOWN.items()}
    return write_corpus(tmp_path / "corpus", [[tokens[each] for each in text] for text in texts])


FIM = {"random_seed": 5, "sequence_length": 14, "split": "1,0,0"}
FIM |= {"reset_position_ids": True, "create_attention_mask": False}
FIM |= {"fim_rate": 1.0, "fim_spm_rate": 0.5, "fim_fragment_rate": 0.7}
FIM["fim_extra_tokens"] = {"prefix": "<p>", "middle": "<m>", "suffix": "<s>", "pad": "<pad>", "eod": "<eod>"}


def make_fim(letters, *, num_samples=4, kind=GPTFIMDataset, **changes):
    config = GPTFIMDatasetConfig(**(FIM | {"blend": ([letters], None), "tokenizer": Wrapper()} | changes))
    return kind(IndexedDataset(letters), letters, np.arange(4, dtype=np.int32), num_samples, Split.train, config)


def shown(tokens):
    return "".join(SHOWN[number] for number in np.asarray(tokens).tolist())


def texts_of(dataset):
    return [shown(dataset._query_document_sample_shuffle_indices(k)[0]) for k in range(4)]


HALF = {"fim_rate": 0.5, "fim_no_prefix": "a"}
FIM_CASES = [
    ({}, ["(|vwxyz)pqrstu.", "(|def)abc.(ghij", "(|)mn.(a|)bcdef", "(|lmn)hijk.(|o)"]),
    ({"fim_split_sample": "<split>"}, ["(|vwxyz)pqrstu.", "(|def)abc.ghij;", "(|)m;(|)n.(|ef)", "(|)hij;(|)klm;("]),
    (HALF, ["pqrstuvwxyz.(|o", "abcdef.(|m)ghij", "m;;n.abcdef.(|h", "(hijk|n)lm.o.(|"]),
]


@pytest.mark.parametrize(("settings", "expected"), FIM_CASES)
def test_texts_equal_megatrons(letters, settings, expected):
    assert texts_of(make_fim(letters, **settings)) == expected
    assert texts_of(make_fim(letters, tokenizer=Own(), **settings)) == expected


@pytest.mark.parametrize("version", [(0, 16, 1), (0, 19, 2)])
def test_samples_depend_on_the_order_of_reading(letters, monkeypatch, version):
    for module in ("core.datasets.gpt_dataset", "training.datasets.fim_dataset"):
        monkeypatch.setattr(f"tokenloom.megatron.{module}.reference_version", lambda: version)
    assert len(make_fim(letters)._query_document_sample_shuffle_indices(0)) == (2 if version < (0, 19) else 3)
    batches = list(DataLoader(make_fim(letters), batch_size=3))
    found = [shown(row) for batch in batches for row in batch["tokens"]]
    assert found[:4] == [text[:-1] for text in FIM_CASES[0][1]]
    assert batches[0]["position_ids"][0].tolist() == list(range(14))
    assert batches[0]["position_ids"][1].tolist() == [*range(10), *range(4)]
    assert batches[0]["labels"][0].tolist() == [*batches[0]["tokens"][0, 1:].tolist(), 94]


def test_the_builder(letters, tmp_path):
    config = make_fim(letters, path_to_cache=str(tmp_path)).config
    train, _, _ = BlendedMegatronDatasetBuilder(GPTFIMDataset, [4, 0, 0], lambda: True, config).build()
    assert (train.fim_rate, train.fim_spm_rate, train.fragment_fim_rate) == (1.0, 0.5, 0.7)
    assert (train.prefix_tok_id, train.middle_tok_id, train.suffix_tok_id) == (90, 91, 92)
    assert (train.pad_tok_id, train.eod_tok_id, train.fim_split_sample) == (93, 94, None)
    assert texts_of(train) == FIM_CASES[0][1]


def test_an_overridden_hook_is_called(letters):
    class Reversed(GPTFIMDataset):
        def _fim_permute_sequence(self, sequence, rate):
            return sequence[::-1]

    dataset = make_fim(letters, kind=Reversed)
    assert texts_of(dataset)[0] == "zyxwvutsrqp.o.a"
    (batch,) = DataLoader(dataset, batch_size=4)
    assert shown(batch["tokens"][0]) == "zyxwvutsrqp.o."


def test_truncate_or_pad_keeps_the_length(letters):
    dataset = make_fim(letters)
    ids = {"suffix_tok_id": 92, "prefix_tok_id": 90, "middle_tok_id": 91, "pad_tok_id": 93}
    text = np.arange(10)
    for _ in range(20):
        moved = dataset._permute(text, 1.0, 0.5, Wrapper(), **ids)
        assert len(moved) == 10
    longer = np.array([*range(5), 95, 95, 95, 95, 95])
    assert (dataset._permute(longer, 1.0, 0.0, Wrapper(), **ids) == 93).sum() == 2
    assert dataset._permute(text, 0.0, 0.5, Wrapper(), **ids) is text


def test_errors_of_fim_are_assertion_errors(letters):
    with pytest.raises(AssertionError, match=r"`fim_fragment_rate`: must be in \[0, 1\], got None"):
        make_fim(letters, fim_split_sample="<split>", fim_fragment_rate=None)
    tokenizer = Own()
    del tokenizer.tokenize
    with pytest.raises(AssertionError, match="the tokenizer Own has no `tokenize`"):
        make_fim(letters, tokenizer=tokenizer)


pytestmark = pytest.mark.filterwarnings("ignore:'pin_memory' argument is set")

SETTINGS = {"dataloader_type": "single", "micro_batch_size": 2, "global_batch_size": 8, "num_workers": 0}

OtherSplit = Enum("OtherSplit", "train valid test")


class Numbers(torch.utils.data.Dataset):
    def __init__(self, length=24, **attributes):
        self.length = length
        vars(self).update(attributes)

    def __len__(self):
        return self.length

    def __getitem__(self, idx):
        return {"number": torch.tensor(idx)}


def build(dataset, consumed=0, *, rank=1, size=2, **changes):
    args = Namespace(**(SETTINGS | changes))
    return build_pretraining_data_loader(dataset, consumed, args=args, data_parallel_rank=rank, data_parallel_size=size)


def numbers(loader):
    return [batch["number"].tolist() for batch in loader]


def test_batches_start_after_the_consumed_samples_and_whole_ones_are_lists():
    loader = build(Numbers(), 8)
    assert (len(loader), loader.pin_memory, loader.worker_init_fn) == (24, True, None)
    assert numbers(loader) == [[10, 11], [14, 15], [18, 19], [22, 23]]
    (first, *_) = build(Numbers(), hybrid_context_parallel=True)
    assert [int(sample["number"]) for sample in first] == [2, 3, 6, 7]


@pytest.mark.parametrize("split", [Split.valid, OtherSplit.valid, OtherSplit.test, Split.train, None])
@pytest.mark.parametrize("name", ["split", "index_split"])
def test_evaluation_has_its_own_batch_sizes(split, name):
    dataset = Numbers(**{name: split})
    sizes = {"eval_micro_batch_size": 3, "eval_global_batch_size": 12}
    sampler = build(dataset, **sizes, hybrid_context_parallel=True).batch_sampler
    expected = (3, 12) if split is not None and split.name != "train" else (2, 8)
    assert (sampler.micro_batch_size, sampler.global_batch_size) == expected
    is_full = type(build(dataset, full_validation=True).batch_sampler).__name__ == "MegatronFullValidationSampler"
    assert is_full == (split is not None and split.name == "valid")


def test_other_kinds_of_loaders():
    assert numbers(build(Numbers(11), dataloader_type="cyclic", data_sharding=True, rank=0)) == [[0, 1], [3, 2]]
    dataset = Numbers()
    assert build(dataset, dataloader_type="external") is dataset
    with pytest.raises(Exception, match="odd dataloader type is not supported"):
        build(dataset, dataloader_type="odd")


@pytest.mark.parametrize(("paths", "start"), [([], None), (["s3://bucket/web.bin"], "forkserver")])
def test_workers_of_remote_data_are_not_forked(paths, start):
    dataset = Numbers(remote_paths=paths, will_need=lambda positions: None)
    context = build(dataset, num_workers=1).multiprocessing_context
    assert (context and context.get_start_method()) == start
    assert build(dataset).multiprocessing_context is None


def test_an_empty_dataset(monkeypatch):
    assert build(None) is None
    monkeypatch.setattr(data_samplers, "reference_version", lambda: (0, 20))
    assert build(Numbers(0)) is None
    monkeypatch.setattr(data_samplers, "reference_version", lambda: (0, 19, 2))
    with pytest.raises(AssertionError, match="dataset is empty"):
        build(Numbers(0))


def test_defaults_are_those_of_the_program(monkeypatch):
    state = Namespace(get_data_parallel_rank=lambda: 0, get_data_parallel_world_size=lambda: 3)
    monkeypatch.setattr(data_samplers, "get_args", lambda: Namespace(**SETTINGS))
    monkeypatch.setattr(data_samplers, "_parallel_state", lambda: state)
    assert data_samplers.mpu is state
    assert numbers(build_pretraining_data_loader(Numbers(12), 0)) == [[0, 1], [6, 7]]


def gpt_dataset(tmp_path, kind=GPTDataset):
    prefix = write_corpus(tmp_path / "corpus", [range(40), range(30)])
    settings = {"sequence_length": 8, "create_attention_mask": True, "path_to_cache": str(tmp_path / "cache")}
    config = make_config(prefix, kind=GPTDatasetConfig, **settings)
    return kind(IndexedDataset(prefix), prefix, np.arange(2, dtype=np.int32), 8, Split.train, config)


def test_batches_equal_collated_samples(tmp_path):
    dataset = gpt_dataset(tmp_path)
    loader = build(dataset, rank=0, size=1, micro_batch_size=3)
    expected = [torch.utils.data.default_collate([dataset[k] for k in range(first, first + 3)]) for first in (0, 3)]
    for batch, other in zip(loader, expected, strict=False):
        assert equal_samples(batch, other)
    samples = dataset.__getitems__([0, 1])
    samples[1]["tokens"] = samples[1]["tokens"] + 1
    found = loader.collate_fn(samples)["tokens"]
    assert found.tolist() == [dataset[0]["tokens"].tolist(), (dataset[1]["tokens"] + 1).tolist()]

    class Changed(GPTDataset):
        def __getitem__(self, idx):
            return {**super().__getitem__(idx), "number": idx}

    loader = build(gpt_dataset(tmp_path, Changed), rank=0, size=1)
    assert numbers(loader) == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_a_blend_that_resonates_with_the_ranks(tmp_path, rng):
    prefixes = [write_corpus(tmp_path / name, rng.integers(0, 90, size=(10, 40))) for name in ("books", "web")]
    changes = {"blend": (prefixes, [1.0, 1.0]), "split": "1,0,0", "path_to_cache": str(tmp_path / "cache")}
    config = make_config(None, kind=GPTDatasetConfig, **changes)
    mixed = BlendedMegatronDatasetBuilder(GPTDataset, [160, None, None], lambda: True, config).build()[0]
    sizes = {"micro_batch_size": 1, "global_batch_size": 8}
    with pytest.warns(ResonanceWarning, match="50.0% of the blend, but during the whole run 0.0% of the samples"):
        by_turns = build(mixed, rank=0, **sizes)
    assert {int(batch["dataset_id"]) for batch in by_turns} == {0}
    evenly = [int(batch["dataset_id"]) for batch in build(mixed, rank=0, **sizes, dataloader_type="balanced")]
    assert evenly.count(0) == evenly.count(1) == 40


def shortened(kind):
    class Shorter(kind):
        def get_start_end_idx(self):
            start, stop = super().get_start_end_idx()
            return start, stop - 1

    return Shorter


def on_both(kind, *arguments):
    """Returns the batches of both ranks; "rank" stands for the arguments rank and size."""
    return [list(at_rank(kind, rank, *arguments)) for rank in range(2)]


def at_rank(kind, rank, *arguments):
    return kind(*(each for argument in arguments for each in ((rank, 2) if argument == "rank" else (argument,))))


def attributes(sampler, *names):
    return [getattr(sampler, name) for name in names]


def two_epochs(sharded):
    samplers = [at_rank(Shuffled, rank, None, 11, 0, 2, "rank", sharded) for rank in range(2)]
    return [[list(sampler), list(sampler), sampler.consumed_samples, sampler.epoch] for sampler in samplers]


ATTRIBUTES = ("total_samples", "consumed_samples", "micro_batch_size", "data_parallel_rank")
ATTRIBUTES += ("micro_batch_times_data_parallel_size", "drop_last")
CASES = [
    (lambda: on_both(Ordered, 11, 3, 2, "rank"), [[[3, 4], [7, 8]], [[5, 6], [9, 10]]]),
    (lambda: on_both(Ordered, 11, 0, 2, "rank", False), [[[0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7], [10]]]),
    (lambda: on_both(Ordered, 9, 0, 2, "rank", False), [[[0, 1], [4, 5], [8]], [[2, 3], [6, 7], []]]),
    (lambda: list(shortened(Ordered)(8, 0, 2, 0, 2)), [[0], [4]]),
    (lambda: attributes(Ordered(100, 10, 2, 1, 2), *ATTRIBUTES), [100, 10, 2, 1, 4, True]),
    (lambda: Ordered(100, 10, 2, 1, 2).get_start_end_idx(), (2, 4)),
    (lambda: on_both(Hybrid, 20, 1, 2, 8, "rank"), [[[1, 2, 5, 6], [9, 10, 13, 14]], [[3, 4, 7, 8], [11, 12, 15, 16]]]),
    (  # rounded down to a global batch of 8
        lambda: on_both(Hybrid, 20, 0, 2, 10, "rank"),
        [[[0, 1, 4, 5], [8, 9, 12, 13]], [[2, 3, 6, 7], [10, 11, 14, 15]]],
    ),
    (lambda: on_both(Hybrid, 14, 0, 2, 8, "rank", False), [[[0, 1, 4, 5], [8, 9, 12, 13]], [[2, 3, 6, 7], [10, 11]]]),
    (lambda: list(shortened(Hybrid)(16, 0, 2, 8, 1, 2)), [[2, 6], [10, 14]]),
    (
        lambda: attributes(Hybrid(20, 1, 2, 8, 1, 2), "num_micro_batches", "global_batch_size", "data_parallel_size"),
        [2, 8, 2],
    ),
    (lambda: [list(Full(7, rank, 3)) for rank in range(3)], [[[0], [3], [6]], [[1], [4]], [[2], [5]]]),
    (lambda: two_epochs(False)[0], [[[4, 7], [3, 0]], [[5, 1], [0, 9]], 16, 1]),
    (lambda: two_epochs(False)[1], [[[1, 5], [9, 8]], [[6, 2], [8, 3]], 16, 1]),
    (lambda: two_epochs(True)[0], [[[0, 1], [3, 2]], [[1, 3], [2, 0]], 16, 1]),
    (lambda: two_epochs(True)[1], [[[4, 5], [7, 6]], [[5, 7], [6, 4]], 16, 1]),
    (lambda: attributes(Shuffled(None, 102, 0, 2, 0, 2, False), "last_batch_size", "consumed_samples"), [2, 0]),
    (lambda: [len(Ordered(100, 10, 2, 0, 2)), len(Hybrid(20, 1, 2, 8, 0, 2))], [100, 20]),
    (lambda: len(Shuffled(None, 100, 8, 2, 0, 2, False)), 100),
    (lambda: [len(Full(7, rank, 3)) for rank in range(3)], [3, 2, 2]),
]
"""Results of Megatron's samplers, recorded with 0.19.2."""

WRONG = [
    lambda: Ordered(100, 100, 2, 0, 2),
    lambda: Ordered(0, 0, 2, 0, 2),
    lambda: Ordered(10, 0, 0, 0, 2),
    lambda: Hybrid(14, 0, 2, 3, 0, 2),  # less than a micro-batch of all ranks
    lambda: Ordered(10, 0, 1, 2, 2),
    lambda: Shuffled(None, 0, 0, 2, 0, 2, False),
    lambda: list(Shuffled(None, 100, 3, 2, 0, 2, False)),  # within a batch
    lambda: list(Shuffled(None, 23, 28, 3, 0, 2, False)),
    lambda: list(Shuffled(None, 3, 0, 2, 0, 2, False)),  # less than a batch
    lambda: Full(0, 0, 1),
]


@pytest.mark.parametrize(("found", "expected"), CASES)
def test_samplers_equal_megatrons(found, expected):
    assert found() == expected


@pytest.mark.parametrize("attempt", WRONG)
def test_errors_are_assertion_errors(attempt):
    with pytest.raises(AssertionError):
        attempt()


def test_samplers_resume():
    sampler = Hybrid(20, 0, 2, 10, 1, 2)
    assert isinstance(sampler, DataParallelSampler)
    assert [sampler.position_after(count) for count in range(3)] == [0, 8, 16]
    sampler.begin_at(8)
    assert list(sampler) == [[10, 11, 14, 15]]


class Draws:
    def __len__(self):
        return 4

    def __getitem__(self, idx):
        return torch.tensor([torch.rand(()).item(), np.random.random(), random.random()])  # noqa: NPY002


def test_samples_have_their_own_seeds_and_the_random_sampler_sets_the_epoch():
    dataset = RandomSeedDataset(Draws(), seed=5)
    first = dataset[2]
    dataset[0]
    assert torch.equal(dataset[2], first)
    assert torch.equal(RandomSeedDataset(Draws(), seed=7)[0], first)
    dataset.set_epoch(1)
    assert torch.equal(dataset[1], first)
    dataset = RandomSeedDataset(Draws(), seed=5)
    loader = DataLoader(dataset, batch_sampler=Shuffled(dataset, 4, 4, 2, 0, 1, False))
    (first, _), (second, _) = list(loader), list(loader)
    assert dataset.curr_seed == 7
    assert not torch.equal(first, second)
