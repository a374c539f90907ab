"""Chunk tables, counts and the choice of neighbors beside megatron-core 0.15.3, for corpora drawn anew in each run."""

from pathlib import Path

import h5py
import numpy as np
import pytest
from tests.peer.retro_peer import answers_of_peer, printed_seed, require_peer
from tests.peer.retro_side import tokens_for_embedder
from tests.support import EOD, random_documents, write_corpus

from tokenloom import IndexedDataset
from tokenloom_retro.chunk_table import (
    chunk_block,
    chunk_spans,
    documents_in,
    individual_chunks,
    individual_document_offsets,
    merged_chunks,
    merged_offsets,
    num_sampled_chunks,
    num_train_chunks,
    num_train_documents,
)
from tokenloom_retro.project import DatasetInfo, RetroProject, merged_rows
from tokenloom_retro.query_build import without_own_documents

pytestmark = [pytest.mark.peer, pytest.mark.slow]

ROUNDS = 6
VOCAB_SIZE = 12


class Round:
    """A project with pairs, drawn at random, and what a search in its database might find."""

    def __init__(self, folder, number, rng):
        self.folder = folder / str(number)
        self.prefixes = [f"corpus{i}" for i in range(1 + number % 3)]
        (self.folder / "data").mkdir(parents=True)
        for prefix in self.prefixes:
            documents = random_documents(rng, count=60, longest=40, vocab_size=VOCAB_SIZE, empty_share=0)
            ended = [np.append(each, EOD) if rng.random() < 0.8 else each for each in documents]
            write_corpus(self.folder / "data" / prefix, [*ended, [EOD]])  # the peer fails at documents without tokens
        self.ratios = rng.integers(1, 9, len(self.prefixes)).tolist()
        self.chunk_length = int(rng.choice([2, 3, 8]))
        self.block_size = int(rng.choice([25, 61]))
        self.split = str(rng.choice(["98,2,0", "100,0,0", "70,20,10"]))
        self.num_trained_on = int(rng.integers(1, 40))
        self.tables = [self._blocks_of(prefix) for prefix in self.prefixes]
        self.infos = self._count()
        num_chunks = sum(info.n_chunks_train for info in self.infos)
        self.chunks_per_sample, self.num_saved = int(rng.integers(1, 5)), int(rng.integers(1, 6))
        self.found = rng.integers(-1, num_chunks, size=(30, 6))
        self.first_chunk = int(rng.integers(0, 9))
        self.samples = [
            {
                "dataset": int(rng.integers(len(self.prefixes))),
                "documents": rng.integers(0, 61, size=rng.integers(1, 20)).tolist(),
            }
            for _ in range(1 + (self.first_chunk + 29) // self.chunks_per_sample)
        ]

    def _blocks_of(self, prefix):
        dataset = IndexedDataset(str(self.folder / "data" / prefix))
        blocks = []
        for start in range(0, len(dataset), self.block_size):
            stop = min(start + self.block_size, len(dataset))
            lengths, ends = documents_in(dataset, start, stop, eod=EOD)
            spans = chunk_spans(lengths, ends, self.chunk_length, first_document=start)
            texts = [" ".join(map(str, dataset.get(d, a, b - a))) for d, a, b in spans.tolist()]
            counts = np.array([len(tokens_for_embedder(text)) for text in texts], dtype=np.int64)
            blocks.append(chunk_block(spans, counts, range(start, stop)))
        return blocks

    def _count(self):
        sampled = num_sampled_chunks(self.num_trained_on, self.ratios)
        num_train = num_train_documents(61, self.split)
        return [
            DatasetInfo(
                ratio=float(self.ratios[number]),
                prefix=prefix,
                n_docs=61,
                n_docs_train=num_train,
                n_chunks=sum(len(block.chunks_valid) for block in blocks),
                n_chunks_train=sum(num_train_chunks(block.chunks_valid, num_train) for block in blocks),
                n_chunks_invalid=sum(len(block.chunks_invalid) for block in blocks),
                n_chunks_sampled=sampled[number],
            )
            for number, (prefix, blocks) in enumerate(zip(self.prefixes, self.tables, strict=True))
        ]

    def case(self):
        """Returns what the other process builds it by."""
        names = ("prefixes", "ratios", "chunk_length", "block_size", "split", "num_trained_on", "samples")
        more = {name: getattr(self, name) for name in (*names, "chunks_per_sample", "num_saved", "first_chunk")}
        return {**more, "folder": str(self.folder), "eod": EOD, "found": self.found.tolist(), "num_queried": 6}


@pytest.fixture(scope="module")
def rounds(tmp_path_factory):
    """Returns rounds, and what the peer leaves of neighbors; its databases are in the folders of the rounds."""
    require_peer()
    seed = printed_seed()
    folder = tmp_path_factory.mktemp("retro_building")
    drawn = [Round(folder, number, np.random.default_rng([seed, number])) for number in range(ROUNDS)]
    found = answers_of_peer("build", drawn, folder)
    return [(each, found[f"{number}/left"]) for number, each in enumerate(drawn)]


@pytest.fixture(params=range(ROUNDS))
def compared(request, rounds):
    return rounds[request.param]


def test_blocks_of_chunks_are_those_of_the_peer(compared):
    drawn, _ = compared
    for prefix, blocks in zip(drawn.prefixes, drawn.tables, strict=True):
        paths = sorted(Path(RetroProject(drawn.folder).individual_folder(prefix)).iterdir())
        assert len(paths) == len(blocks)
        for path, block in zip(paths, blocks, strict=True):
            with h5py.File(path) as file:
                for name in ("chunks_valid", "chunks_invalid", "doc_offsets"):
                    assert_equal(getattr(block, name), file[name][:])


def test_counts_are_those_of_the_peer(compared):
    drawn, _ = compared
    assert RetroProject(drawn.folder).infos == tuple(drawn.infos)


def test_merged_tables_are_those_of_the_peer(compared):
    drawn, _ = compared
    for kind in ("sampled", "train", "valid"):
        chunks, offsets, before = [], [], 0
        for number, (info, blocks) in enumerate(zip(drawn.infos, drawn.tables, strict=True)):
            rows = merged_rows(info, kind)
            whole = np.concatenate([block.chunks_valid for block in blocks])
            chunks.append(merged_chunks(number, whole[rows.start : rows.stop]))
            for block in blocks:
                rows_of_block = merged_offsets(number, block.doc_offsets, chunks_before=before)
                offsets.append(rows_of_block[block.doc_offsets[:, 0] < info.n_docs_train])
                before += len(block.chunks_valid)
            before = int(np.concatenate(offsets)[-1, 2])
        with h5py.File(RetroProject(drawn.folder).merged_path(kind)) as file:
            assert_equal(np.concatenate(chunks), file["chunks"][:])
            if kind == "train":
                assert_equal(np.concatenate(offsets), file["doc_offsets"][:])


def test_what_the_peer_has_built_is_read(compared):
    drawn, _ = compared
    project = RetroProject(drawn.folder)
    for number, (info, blocks) in enumerate(zip(drawn.infos, drawn.tables, strict=True)):
        for name in ("chunks_valid", "chunks_invalid"):
            rows = np.concatenate([getattr(block, name) for block in blocks])
            found = individual_chunks(project, info.prefix, number=number, name=name)
            assert_equal(found, merged_chunks(number, rows))
        counts = np.bincount(np.concatenate([block.chunks_valid[:, 0] for block in blocks]), minlength=61)
        ends = individual_document_offsets(project, info.prefix, number=number)
        assert ends.tolist() == [[number, document, end] for document, end in enumerate(np.cumsum(counts).tolist())]
    for kind in ("sampled", "train", "valid"):
        database = project.database(kind, chunk_length=drawn.chunk_length, eod_token_id=EOD)
        assert not len(database) or not database.chunks.flags.owndata
        with h5py.File(project.merged_path(kind)) as file:
            assert_equal(database.chunks, file["chunks"][:])
        database.check()


def test_neighbors_that_are_left_are_those_of_the_peer(compared):
    drawn, theirs = compared
    with h5py.File(RetroProject(drawn.folder).merged_path("train")) as file:
        chunk_documents = file["chunks"][:, :2]
    own = [
        (number, sample["dataset"], document)
        for number, sample in enumerate(drawn.samples)
        for document in sample["documents"]
    ]
    ours = without_own_documents(
        drawn.found,
        chunk_documents,
        groups=np.arange(drawn.first_chunk, drawn.first_chunk + 30) // drawn.chunks_per_sample,
        own_documents=np.array(own),
        num_saved=drawn.num_saved,
    )
    assert_equal(ours, theirs)


def assert_equal(ours, theirs):
    if theirs.shape == (0,):  # what the peer writes of a table without rows
        theirs = theirs.reshape(ours.shape)
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    assert (ours == theirs).all()
