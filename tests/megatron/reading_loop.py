"""A program as users of Megatron write it: builds GPT, BERT or T5 datasets on some ranks, and reads all batches.

Run as a script with a JSON file of programs; writes a digest of each rank's batches as JSON. Programs run in forked
processes, as importing Megatron takes longest.
"""

import hashlib
import json
import multiprocessing
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

if __name__ == "__main__":
    warnings.simplefilter("ignore")

from megatron.core import parallel_state
from megatron.core.datasets.bert_dataset import BERTMaskedWordPieceDataset, BERTMaskedWordPieceDatasetConfig
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from megatron.core.datasets.megatron_tokenizer import MegatronLegacyTokenizer
from megatron.core.datasets.t5_dataset import T5MaskedWordPieceDataset, T5MaskedWordPieceDatasetConfig
from megatron.core.datasets.utils import get_blend_from_list

SEQUENCE_LENGTH = 64
MICRO_BATCH_SIZE = 2
GLOBAL_BATCH_SIZE = 8
MASKING = {
    "masking_probability": 0.15,
    "short_sequence_probability": 0.1,
    "masking_max_ngram": 3,
    "masking_do_full_word": True,
    "masking_do_permutation": False,
    "masking_use_longer_ngrams": False,
}
BERT = {"classification_head": True, "masking_use_geometric_distribution": False}
T5 = {"sequence_length_decoder": 32, "masking_use_geometric_distribution": True}
KINDS = {
    "gpt": (GPTDataset, GPTDatasetConfig, {}),
    "bert": (BERTMaskedWordPieceDataset, BERTMaskedWordPieceDatasetConfig, MASKING | BERT),
    "t5": (T5MaskedWordPieceDataset, T5MaskedWordPieceDatasetConfig, MASKING | T5),
}


class VocabularyTokenizer(MegatronLegacyTokenizer):
    def __init__(self, path: str) -> None:
        super().__init__(path)
        with open(path, encoding="utf-8") as stream:
            self._words = stream.read().splitlines()

    def tokenize(self, text: str) -> Any:
        return [self.vocab[word] for word in text.split()]

    @property
    def vocab(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self._words)}

    inv_vocab = property(lambda self: dict(enumerate(self._words)))
    vocab_size = property(lambda self: len(self._words))
    pad = property(lambda self: self.vocab["[PAD]"])
    cls = bos = property(lambda self: self.vocab["[CLS]"])
    sep = eos = eod = property(lambda self: self.vocab["[SEP]"])
    mask = property(lambda self: self.vocab["[MASK]"])

    @property
    def additional_special_tokens_ids(self) -> list[int]:
        return [number for number, word in enumerate(self._words) if word.startswith("<extra_")]


def build_datasets(program: dict[str, Any]) -> list[Any]:
    """Returns the train and the valid dataset; None on ranks that receive their batches."""
    kind, config_class, settings = KINDS[program["model"]]
    config: Any = config_class(
        random_seed=1234,
        sequence_length=SEQUENCE_LENGTH,
        blend=get_blend_from_list(program["data_path"]),
        split="80,20,0",
        path_to_cache=program["cache"],
        tokenizer=VocabularyTokenizer(program["vocabulary"]),
        **settings,
        **program["settings"],
    )
    sizes = [GLOBAL_BATCH_SIZE * program["steps"], GLOBAL_BATCH_SIZE, 0]
    first_of_tensor_parallel = parallel_state.get_tensor_model_parallel_rank() == 0
    return BlendedMegatronDatasetBuilder(kind, sizes, lambda: first_of_tensor_parallel, config).build()[:2]


def read(dataset: Dataset[Any], digest: Any) -> None:
    rank, size = parallel_state.get_data_parallel_rank(), parallel_state.get_data_parallel_world_size()
    stride = MICRO_BATCH_SIZE * size
    firsts = [start + rank * MICRO_BATCH_SIZE for start in range(0, len(dataset) - stride + 1, stride)]
    order = [range(first, first + MICRO_BATCH_SIZE) for first in firsts]
    for batch in DataLoader(dataset, batch_sampler=order, num_workers=0):
        for name in sorted(batch):
            digest.update(f"{name} {batch[name].dtype} {tuple(batch[name].shape)}".encode())
            digest.update(batch[name].contiguous().numpy().tobytes())


def run_rank(rank: int, world_size: int, program: dict[str, Any], results: Any) -> None:
    torch.set_num_threads(1)
    store = torch.distributed.FileStore(program["store"], world_size)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=world_size, store=store)
    parallel_state.initialize_model_parallel(program["tp"], program["pp"])
    digest, found = hashlib.sha256(), None
    for dataset in build_datasets(program):
        if dataset is not None:
            read(dataset, digest)
            found = type(dataset).__module__
    torch.distributed.barrier()
    results.put((rank, {"read": digest.hexdigest(), "class": found}))


def main() -> None:
    context = multiprocessing.get_context("fork")
    found = []
    for program in json.loads(Path(sys.argv[1]).read_text()):
        world_size = program["tp"] * program["pp"] * program["dp"]
        results = context.SimpleQueue()
        arguments = [(rank, world_size, program, results) for rank in range(world_size)]
        ranks = [context.Process(target=run_rank, args=each) for each in arguments]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        if any(process.exitcode for process in ranks):
            sys.exit(f"{program['name']}: {[process.exitcode for process in ranks]}")
        found.append([result for _, result in sorted(results.get() for _ in ranks)])
    Path(sys.argv[2]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
