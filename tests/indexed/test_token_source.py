import numpy as np
import pytest
from tests.datasets.conversations import ANSWER, PROMPT, conversation, make_sft, write_conversations
from tests.support import MASKING, StandInWordPieces, equal_samples, make_config, write_corpus, write_sentences

from tokenloom.datasets.exposure import SFTLowLevelDataset
from tokenloom.datasets.gpt import GPTDataset
from tokenloom.datasets.masked import BERTMaskedWordPieceDataset, BERTMaskedWordPieceDatasetConfig
from tokenloom.datasets.splits import Split
from tokenloom.errors import ConfigError, DatasetFormatError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.loading.thread_loader import ThreadLoader

DOCUMENTS = [list(range(1, 30)), [31, 32, 9], list(range(40, 60)), [9]]
EXPECTED = [[token + 1 for token in document] for document in DOCUMENTS]


@pytest.fixture
def prefix(tmp_path):
    return write_corpus(tmp_path / "corpus", DOCUMENTS)


def samples_of(source, **changes):
    config = make_config(None, **changes)
    return GPTDataset(source, None, np.arange(len(DOCUMENTS), dtype=np.int32), 8, Split.train, config)


def assert_same_as(dataset, expected):
    positions = list(range(len(expected)))
    batch = dataset.batch(positions)
    threads = next(iter(ThreadLoader(dataset, [positions], reuse_after=1)))
    for k in positions:
        assert equal_samples(dataset.sample(k), expected.sample(k))
        for name, value in expected.sample(k).items():
            assert batch[name][k].tolist() == value.tolist()
            assert threads[name][k].tolist() == value.tolist()


class Raised(IndexedDataset):
    def get(self, idx, offset=0, length=None):
        return super().get(idx, offset, length) + 1


class Passing:
    """What is not changed comes from the object within."""

    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)


class Wrapper(Passing):
    """Passes `gather` on, too."""

    def __len__(self):
        return len(self.inner)

    def get(self, idx, offset=0, length=None):
        return self.inner.get(idx, offset, length) + 1


class Disguised(Wrapper):
    """A wrapper that calls itself by the name of the class within, as those of `wrapt` do."""

    @property
    def __class__(self):
        return type(self.inner)


class Lists:
    """As little as the reference asks of a low-level dataset."""

    def __init__(self, documents):
        self.documents = documents
        self.sequence_lengths = np.array([len(document) for document in documents], dtype=np.int32)

    def __len__(self):
        return len(self.documents)

    def __getitem__(self, idx):
        return np.array(self.documents[idx])

    def get(self, idx, offset=0, length=None):
        return self[idx][offset : None if length is None else offset + length]


@pytest.mark.parametrize("mmap", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_get_is_asked_wherever_it_is_overridden(prefix, tmp_path, mmap):
    expected = samples_of(IndexedDataset(write_corpus(tmp_path / "raised", EXPECTED)))
    plain = IndexedDataset(prefix, mmap=mmap)
    for source in (Raised(prefix, mmap=mmap), Wrapper(plain), Disguised(plain), Lists(EXPECTED)):
        assert_same_as(samples_of(source), expected)
    assert [tokens.tolist() for tokens in Raised(prefix)[:2]] == EXPECTED[:2]
    assert Raised(prefix)[1].tolist() == EXPECTED[1]


def test_a_reader_of_a_users_own_is_asked(prefix):
    class Reader(Passing):
        def read(self, offset, length):
            return self.inner.read(offset, length) * 0

        def read_many(self, offsets, lengths):
            return map(self.read, offsets, lengths)

    source = IndexedDataset(prefix)
    dataset = samples_of(source)
    assert dataset.sample(0)["tokens"].any()
    source.bin_reader = Reader(source.bin_reader)
    assert not dataset.sample(0)["tokens"].any()
    assert not dataset.batch([0, 1])["tokens"].any()


def test_lengths_of_a_users_own_are_not_passed_by(prefix):
    class Scaled(IndexedDataset):
        factor = 0.5

        @property
        def sequence_lengths(self):
            return (super().sequence_lengths * self.factor).astype(np.int32)

    class Doubled(Scaled):
        factor = 2

    halves = [document[: len(document) // 2] for document in DOCUMENTS]
    assert_same_as(samples_of(Scaled(prefix)), samples_of(Lists(halves)))
    with pytest.raises(Exception, match="out of range: there are"):
        samples_of(Doubled(prefix)).batch(range(8))


def test_whole_sequences_are_asked_for_by_number(tmp_path):
    sentences = [[[10, 11], [12, 13, 14], [15]], [[20, 21]], [[30, 31], [32], [33], [34, 35, 36]]]
    prefix = write_sentences(tmp_path / "a", sentences)
    raised = write_sentences(tmp_path / "b", [[[token + 1 for token in each] for each in one] for one in sentences])
    settings = {"classification_head": False, "blend": ([prefix], None), "split": "1", "sequence_length": 12}
    config = BERTMaskedWordPieceDatasetConfig(**MASKING, **settings, tokenizer=StandInWordPieces())

    def make(source):
        return BERTMaskedWordPieceDataset(source, source.path_prefix, np.arange(3), None, Split.train, config)

    class ByNumber(IndexedDataset):
        def __getitem__(self, idx):
            return super().__getitem__(idx) + 1

    for cls in (Raised, ByNumber):
        dataset, expected = make(cls(prefix)), make(IndexedDataset(raised))
        assert equal_samples(dataset.batch(range(len(expected))), expected.batch(range(len(expected))))


def test_conversations_of_a_users_own_are_asked(tmp_path):
    class Mine(SFTLowLevelDataset):
        def __getitem__(self, idx):
            return super().__getitem__(idx) + 1

    prefix = write_conversations(tmp_path / "chat", [conversation((PROMPT, [20, 21]), (ANSWER, [22, 23]))])
    plain = make_sft(prefix)
    by_class = type(plain)(Mine(prefix), prefix, plain.indices, None, Split.train, plain.config)
    pair = IndexedDataset(prefix)
    inner = pair.get
    pair.get = lambda *given, **named: inner(*given, **named) + 1
    conversations = SFTLowLevelDataset.of_pair(pair, plain_text=False)
    by_pair = type(plain)(conversations, prefix, plain.indices, None, Split.train, plain.config)
    for dataset in (by_class, by_pair):
        assert dataset.batch([0])["tokens"][0, :4].tolist() == [21, 22, 23, 24]
        assert dataset[0]["tokens"][:4].tolist() == [21, 22, 23, 24]


def test_what_cannot_be_asked_is_refused(prefix):
    class Items(IndexedDataset):
        def __getitem__(self, idx):
            return super().__getitem__(idx) + 1

    overrides = "^`Items` overrides `__getitem__`, which tokenloom does not call\nhint: over"
    with pytest.raises(ConfigError, match=overrides):
        samples_of(Items(prefix))
    short = Lists(DOCUMENTS)
    short.get = lambda idx, offset=0, length=None: np.array([1])
    found = r"tokens of sequence \d starting at token \d+, found shape \[1\] from Lists"
    with pytest.raises(DatasetFormatError, match=found):
        samples_of(short).batch(range(8))
    nothing = Lists(DOCUMENTS)
    nothing.__class__ = type("Nothing", (), {"__len__": Lists.__len__})
    with pytest.raises(ConfigError, match=r"low-level dataset Noth.* has no `get\(idx, offset, length\)`"):
        samples_of(nothing).sample(0)
