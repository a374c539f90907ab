"""A program as users of Megatron write it: reads GPT, BERT or T5 data on some ranks, and trains a GPT model.

Run as a script with a JSON file of programs; writes each rank's losses and a digest of its batches as JSON. Programs
run in forked processes, as importing Megatron takes longest.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import sys
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tests.megatron.cpu_torch import pretend
from torch.utils.data import DataLoader, Dataset

if __name__ == "__main__":  # before Megatron is imported, which asks for CUDA
    warnings.simplefilter("ignore")
    pretend()

from megatron.core import parallel_state, tensor_parallel
from megatron.core.datasets.bert_dataset import (
    BERTMaskedWordPieceDataset,
    BERTMaskedWordPieceDatasetConfig,
)
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from megatron.core.datasets.megatron_tokenizer import MegatronLegacyTokenizer
from megatron.core.datasets.t5_dataset import T5MaskedWordPieceDataset, T5MaskedWordPieceDatasetConfig
from megatron.core.datasets.utils import get_blend_from_list
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.distributed.finalize_model_grads import finalize_model_grads
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.transformer_config import TransformerConfig

SEQUENCE_LENGTH = 64
MICRO_BATCH_SIZE = 2
GLOBAL_BATCH_SIZE = 8
LEARNING_RATE = 0.5
MASKING = {
    "masking_probability": 0.15,
    "short_sequence_probability": 0.1,
    "masking_max_ngram": 3,
    "masking_do_full_word": True,
    "masking_do_permutation": False,
    "masking_use_longer_ngrams": False,
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


def build_datasets(program: dict[str, Any], tokenizer: Any) -> list[Any]:
    """Returns the train and the valid dataset; None on ranks that receive their batches."""
    settings: dict[str, Any] = {
        "random_seed": 1234,
        "sequence_length": SEQUENCE_LENGTH,
        "blend": get_blend_from_list(program["data_path"]),
        "split": "80,20,0",
        "path_to_cache": program["cache"],
        "tokenizer": tokenizer,
        **program.get("settings", {}),
    }
    kind: Any
    if program["model"] == "gpt":
        kind, config = GPTDataset, GPTDatasetConfig(**settings)
    elif program["model"] == "bert":
        kind = BERTMaskedWordPieceDataset
        geometric = {"masking_use_geometric_distribution": False}
        config = BERTMaskedWordPieceDatasetConfig(classification_head=True, **settings, **MASKING, **geometric)
    else:
        kind = T5MaskedWordPieceDataset
        geometric = {"masking_use_geometric_distribution": True}
        config = T5MaskedWordPieceDatasetConfig(sequence_length_decoder=32, **settings, **MASKING, **geometric)
    sizes = [GLOBAL_BATCH_SIZE * program["steps"], GLOBAL_BATCH_SIZE, 0]
    first_of_tensor_parallel = parallel_state.get_tensor_model_parallel_rank() == 0
    return BlendedMegatronDatasetBuilder(kind, sizes, lambda: first_of_tensor_parallel, config).build()[:2]


def batches(dataset: Dataset[Any] | None, digest: Any) -> Iterator[Any]:
    """Yields this rank's batches in the order of Megatron's sampler, and adds their contents to a digest."""
    rank, size = parallel_state.get_data_parallel_rank(), parallel_state.get_data_parallel_world_size()
    stride = MICRO_BATCH_SIZE * size
    firsts = [start + rank * MICRO_BATCH_SIZE for start in range(0, len(dataset) - stride + 1, stride)]
    order = [range(first, first + MICRO_BATCH_SIZE) for first in firsts]
    for batch in DataLoader(dataset, batch_sampler=order, num_workers=0):
        for name in sorted(batch):
            digest.update(f"{name} {batch[name].dtype} {tuple(batch[name].shape)}".encode())
            digest.update(batch[name].contiguous().numpy().tobytes())
        yield batch


def build_model(program: dict[str, Any], vocab_size: int) -> Any:
    """Returns this rank's part of a GPT model."""
    tp, pp = program["tp"], program["pp"]
    config = TransformerConfig(
        num_layers=2,
        hidden_size=16,
        num_attention_heads=2,
        tensor_model_parallel_size=tp,
        pipeline_model_parallel_size=pp,
        use_cpu_initialization=True,
        pipeline_dtype=torch.float32,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        gradient_accumulation_fusion=False,
    )
    model = GPTModel(
        config=config,
        transformer_layer_spec=get_gpt_layer_local_spec(),
        vocab_size=vocab_size + -vocab_size % tp,
        max_sequence_length=SEQUENCE_LENGTH,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        parallel_output=True,
    )
    settings = DistributedDataParallelConfig(overlap_grad_reduce=False, use_distributed_optimizer=False)
    return DistributedDataParallel(config=config, ddp_config=settings, module=model)


def mean_loss(mask: torch.Tensor, output: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    losses, weights = output.float().view(-1), mask.float().reshape(-1)
    loss = torch.sum(losses * weights) / weights.sum()
    return loss, {"loss": loss.detach()}


def from_first_tensor_rank(names: list[str], data: Any, kind: torch.dtype) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = tensor_parallel.broadcast_data(names, data, kind)
    return found


def forward(data_iterator: Iterator[Any] | None, model: Any) -> tuple[Any, Any]:
    data = None if data_iterator is None else next(data_iterator)
    numbers = from_first_tensor_rank(["tokens", "labels", "position_ids"], data, torch.int64)
    mask = from_first_tensor_rank(["loss_mask"], data, torch.float32)["loss_mask"]
    attention = from_first_tensor_rank(["attention_mask"], data, torch.bool)["attention_mask"]
    output = model(numbers["tokens"], numbers["position_ids"], attention, labels=numbers["labels"])
    return output, partial(mean_loss, mask)


def train(rank: int, world_size: int, program: dict[str, Any]) -> dict[str, Any]:
    """Reads all data on one rank, by training if the model is GPT; returns exact losses and a digest of the batches."""
    torch.set_num_threads(1)
    store = torch.distributed.FileStore(program["store"], world_size)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=world_size, store=store)
    parallel_state.initialize_model_parallel(program["tp"], program["pp"])
    model_parallel_cuda_manual_seed(123, force_reset_rng=True)
    torch.manual_seed(123 + parallel_state.get_pipeline_model_parallel_rank())

    tokenizer = VocabularyTokenizer(program["vocabulary"])
    training, validation = build_datasets(program, tokenizer)
    digest = hashlib.sha256()
    iterators = [batches(data, digest) if data is not None else None for data in (training, validation)]
    losses = []
    if program["model"] == "gpt":
        losses = losses_of(iterators, build_model(program, tokenizer.vocab_size), program["steps"])
    else:
        for iterator in filter(None, iterators):
            list(iterator)
    torch.distributed.barrier()
    return {
        "losses": losses,
        "read": None if training is None else digest.hexdigest(),
        "class": None if training is None else type(training).__module__,
    }


def losses_of(iterators: list[Any], model: Any, steps: int) -> list[list[str]]:
    """Trains and validates; returns the exact losses of each step's micro-batches."""
    run = partial(
        get_forward_backward_func(),
        forward_step_func=forward,
        model=[model],
        num_microbatches=GLOBAL_BATCH_SIZE // MICRO_BATCH_SIZE // parallel_state.get_data_parallel_world_size(),
        seq_length=SEQUENCE_LENGTH,
        micro_batch_size=MICRO_BATCH_SIZE,
        decoder_seq_length=SEQUENCE_LENGTH,
    )
    losses = []
    for _ in range(steps):
        model.zero_grad_buffer()
        losses.append(run(data_iterator=iterators[0], forward_only=False))
        finalize_model_grads([model])
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= LEARNING_RATE * parameter.main_grad
    losses.append(run(data_iterator=iterators[1], forward_only=True))
    return [[float(micro["loss"]).hex() for micro in step] for step in losses]


def run_rank(rank: int, world_size: int, program: dict[str, Any], results: Any) -> None:
    results.put((rank, train(rank, world_size, program)))


def main() -> None:
    """Runs the programs in a file one after another; writes the results of each rank."""
    context = multiprocessing.get_context("fork")
    found = []
    for program in json.loads(Path(sys.argv[1]).read_text()):
        world_size = program["tp"] * program["pp"] * program["dp"]
        results = context.SimpleQueue()
        ranks = [
            context.Process(target=run_rank, args=(rank, world_size, program, results)) for rank in range(world_size)
        ]
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
