"""A training program as users of Megatron write them: GPT, BERT or T5 on some ranks, without a line about tokenloom.

Run as a script with a file of programs; writes, as JSON, what each rank read and what its losses were. Each program
runs in processes of its own, forked once Megatron's models have been imported, which takes longest.
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
from megatron.core.models.bert.bert_layer_specs import bert_layer_local_spec
from megatron.core.models.bert.bert_model import BertModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.models.T5.t5_model import T5Model
from megatron.core.models.T5.t5_spec import (
    get_t5_decoder_with_local_block_spec,
    get_t5_encoder_with_local_block_spec,
)
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
    """Words of a vocabulary, special ones first."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        with open(path, encoding="utf-8") as stream:
            self._words = stream.read().splitlines()

    def tokenize(self, text: str) -> Any:
        return [self.vocab[word] for word in text.split()]

    @property
    def vocab(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self._words)}

    @property
    def inv_vocab(self) -> dict[int, str]:
        return dict(enumerate(self._words))

    @property
    def vocab_size(self) -> int:
        return len(self._words)

    @property
    def additional_special_tokens_ids(self) -> list[int]:
        return [number for number, word in enumerate(self._words) if word.startswith("<extra_")]

    pad = property(lambda self: self.vocab["[PAD]"])
    cls = property(lambda self: self.vocab["[CLS]"])
    sep = property(lambda self: self.vocab["[SEP]"])
    mask = property(lambda self: self.vocab["[MASK]"])
    bos = property(lambda self: self.vocab["[CLS]"])
    eos = property(lambda self: self.vocab["[SEP]"])
    eod = property(lambda self: self.vocab["[SEP]"])


def build_datasets(program: dict[str, Any], tokenizer: Any) -> list[Any]:
    """Returns the data of training and of validation; None on the ranks that get them from others."""
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
    """Yields the batches of this rank, in the order of Megatron's sampler; notes what was in them."""
    rank, size = parallel_state.get_data_parallel_rank(), parallel_state.get_data_parallel_world_size()
    if dataset is None:
        return
    stride = MICRO_BATCH_SIZE * size
    firsts = [start + rank * MICRO_BATCH_SIZE for start in range(0, len(dataset) - stride + 1, stride)]
    order = [range(first, first + MICRO_BATCH_SIZE) for first in firsts]
    for batch in DataLoader(dataset, batch_sampler=order, num_workers=0):
        for name in sorted(batch):
            digest.update(f"{name} {batch[name].dtype} {tuple(batch[name].shape)}".encode())
            digest.update(batch[name].contiguous().numpy().tobytes())
        yield batch


def build_model(program: dict[str, Any], vocab_size: int) -> Any:
    """Returns this rank's part of the model."""
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
    vocab_size += -vocab_size % tp
    shape = {
        "vocab_size": vocab_size,
        "max_sequence_length": SEQUENCE_LENGTH,
        "pre_process": parallel_state.is_pipeline_first_stage(),
        "post_process": parallel_state.is_pipeline_last_stage(),
        "parallel_output": True,
    }
    model: Any
    if program["model"] == "gpt":
        model = GPTModel(config=config, transformer_layer_spec=get_gpt_layer_local_spec(), **shape)
    elif program["model"] == "bert":
        model = BertModel(
            config=config, transformer_layer_spec=bert_layer_local_spec, num_tokentypes=2, add_binary_head=True, **shape
        )
    else:
        model = T5Model(
            config=config,
            encoder_config=config,
            transformer_encoder_layer_spec=get_t5_encoder_with_local_block_spec(2),
            transformer_decoder_layer_spec=get_t5_decoder_with_local_block_spec(2),
            **shape,
        )
    settings = DistributedDataParallelConfig(overlap_grad_reduce=False, use_distributed_optimizer=False)
    return DistributedDataParallel(config=config, ddp_config=settings, module=model)


def mean_loss(mask: torch.Tensor, output: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    losses, weights = output.float().view(-1), mask.float().reshape(-1)
    loss = torch.sum(losses * weights) / weights.sum()
    return loss, {"loss": loss.detach()}


def bert_loss(
    mask: torch.Tensor, is_random: torch.Tensor, output: tuple[torch.Tensor, torch.Tensor]
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    loss, _ = mean_loss(mask, output[0])
    loss = loss + torch.nn.functional.cross_entropy(output[1].view(-1, 2).float(), is_random.view(-1))
    return loss, {"loss": loss.detach()}


def from_first_tensor_rank(names: list[str], data: Any, kind: torch.dtype) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = tensor_parallel.broadcast_data(names, data, kind)
    return found


def forward_gpt(data_iterator: Iterator[Any] | None, model: Any) -> tuple[Any, Any]:
    data = None if data_iterator is None else next(data_iterator)
    numbers = from_first_tensor_rank(["tokens", "labels", "position_ids"], data, torch.int64)
    mask = from_first_tensor_rank(["loss_mask"], data, torch.float32)["loss_mask"]
    attention = from_first_tensor_rank(["attention_mask"], data, torch.bool)["attention_mask"]
    output = model(numbers["tokens"], numbers["position_ids"], attention, labels=numbers["labels"])
    return output, partial(mean_loss, mask)


def forward_bert(data_iterator: Iterator[Any] | None, model: Any) -> tuple[Any, Any]:
    data = None if data_iterator is None else next(data_iterator)
    names = ["text", "types", "labels", "is_random", "loss_mask", "padding_mask"]
    found = from_first_tensor_rank(names, data, torch.int64)
    output = model(found["text"], found["padding_mask"], tokentype_ids=found["types"], lm_labels=found["labels"])
    return output, partial(bert_loss, found["loss_mask"], found["is_random"])


def forward_t5(data_iterator: Iterator[Any] | None, model: Any) -> tuple[Any, Any]:
    data = None if data_iterator is None else next(data_iterator)
    names = ["text_enc", "text_dec", "labels", "loss_mask", "enc_mask", "dec_mask"]
    found = from_first_tensor_rank(names, data, torch.int64)
    masks = T5MaskedWordPieceDataset.config_attention_mask(
        found["text_enc"], found["text_dec"], found["enc_mask"] < 0.5, found["dec_mask"] < 0.5, True
    )
    output = model(found["text_enc"], found["text_dec"], *masks, lm_labels=found["labels"])
    return output, partial(mean_loss, found["loss_mask"])


def train(rank: int, world_size: int, program: dict[str, Any]) -> dict[str, Any]:
    """Trains on one rank; returns the losses of its steps and of validation, exactly, and what it read."""
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
    model = build_model(program, tokenizer.vocab_size)
    data_parallel = parallel_state.get_data_parallel_world_size()
    run = partial(
        get_forward_backward_func(),
        forward_step_func={"gpt": forward_gpt, "bert": forward_bert, "t5": forward_t5}[program["model"]],
        model=[model],
        num_microbatches=GLOBAL_BATCH_SIZE // MICRO_BATCH_SIZE // data_parallel,
        seq_length=SEQUENCE_LENGTH,
        micro_batch_size=MICRO_BATCH_SIZE,
        decoder_seq_length=SEQUENCE_LENGTH,
    )
    losses = []
    for _ in range(program["steps"]):
        model.zero_grad_buffer()
        losses.append(run(data_iterator=iterators[0], forward_only=False))
        finalize_model_grads([model])
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= LEARNING_RATE * parameter.main_grad
    losses.append(run(data_iterator=iterators[1], forward_only=True))
    torch.distributed.barrier()
    return {
        "losses": [[float(micro["loss"]).hex() for micro in step] for step in losses],
        "read": None if training is None else digest.hexdigest(),
        "class": None if training is None else type(training).__module__,
    }


def run_rank(rank: int, world_size: int, program: dict[str, Any], results: Any) -> None:
    results.put((rank, train(rank, world_size, program)))


def main() -> None:
    """Runs the programs that a file describes, one after the other; writes what became of each rank."""
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
