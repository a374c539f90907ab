"""The data arguments that Megatron's parser returns."""

from argparse import Namespace
from typing import Any

_NONE = """
data_args_path data_cache_path data_path dataloader_type decoder_seq_length encoder_seq_length
eval_global_batch_size eval_interval fim_fragment_rate fim_no_prefix fim_split_sample global_batch_size merge_file
object_storage_cache_path per_dataset_sequences_path per_split_data_args_path phase_transition_iterations
rampup_batch_size special_tokens split start_eval_at_iter step_batch_size_schedule test_data_path tiktoken_pattern
tokenizer_model tokenizer_type train_data_path train_iters train_samples valid_data_path vocab_file vocab_size
"""
_FALSE = """
allow_ambiguous_pad_tokens data_parallel_random_init dataloader_defer_npy_index_mmap dataloader_fast_cache_load
dataloader_inter_document_masking eod_mask_loss fim_data full_validation hybrid_context_parallel mock_data
multiple_validation_sets reset_attention_mask reset_position_ids sequence_parallel sft skip_train
tokenizer_hf_no_include_special_tokens
"""
_TRUE = """
bert_binary_head create_attention_mask_in_dataloader data_sharding mmap_bin_files
tokenizer_sentencepiece_ignore_extra_whitespaces
"""
DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(_NONE.split(), None),
    **dict.fromkeys(_FALSE.split(), False),
    **dict.fromkeys(_TRUE.split(), True),
    "context_parallel_size": 1,
    "data_parallel_sharding_strategy": "optim_grads_params",
    "data_per_class_fraction": 1.0,
    "eval_iters": 100,
    "fim_eod_token": "<|endoftext|>",
    "fim_middle_token": "<fim_middle>",
    "fim_pad_token": "<fim_pad>",
    "fim_prefix_token": "<fim_prefix>",
    "fim_rate": 0.5,
    "fim_spm_rate": 0.5,
    "fim_suffix_token": "<fim_suffix>",
    "img_h": 224,
    "img_w": 224,
    "mask_prob": 0.15,
    "micro_batch_size": 2,
    "mid_level_dataset_surplus": 0.005,
    "num_dataset_builder_threads": 1,
    "pipeline_model_parallel_size": 1,
    "seed": 1234,
    "seq_length": 64,
    "sft_tokenizer_prompt_format": "nemotron-h-aligned",
    "short_seq_prob": 0.1,
    "tensor_model_parallel_size": 1,
    "tiktoken_num_special_tokens": 1000,
    "world_size": 1,
}
"""Defaults of the arguments, in releases 0.19.2 and later."""


def arguments(**changes: Any) -> Namespace:
    return Namespace(**DEFAULTS | changes)
