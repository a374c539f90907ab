"""A batch in several layouts of context parallelism, for models that have linear and softmax attention."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tokenloom.errors import ConfigError
from tokenloom.megatron.core.datasets.parallel_groups import as_megatrons_params
from tokenloom.packing.static_shapes import ZIGZAG

_NAMES = ("tokens", "labels", "loss_mask", "attention_mask", "position_ids")


@dataclass(eq=False)
class ContextParallelBatch:
    """What one rank has of a pack, in each layout that was asked for.

    Attributes:
        boundary_layout: the layout at both ends of the model, "zigzag" or "contiguous".
        batches_by_layout: tensors by name, by layout.
        packed_seq_params_by_layout: what attention is told, by layout.
        thd_plan: how activations go from one layout to the other; None: the model makes it of the boundaries.
    """

    boundary_layout: str
    batches_by_layout: dict[str, dict[str, Any]]
    packed_seq_params_by_layout: dict[str, Any]
    thd_plan: Any = None

    @classmethod
    def from_single_layout(cls, layout: str, batch: dict[str, Any], packed_seq_params: Any) -> ContextParallelBatch:
        """Returns a batch that has one layout."""
        return cls(layout, {layout: batch}, {layout: packed_seq_params})

    def get_batch(self, layout: str | None = None) -> dict[str, Any]:
        """Returns the tensors in a layout; by default that of both ends."""
        return self.batches_by_layout[self.boundary_layout if layout is None else layout]

    def get_packed_seq_params(self, layout: str | None = None) -> Any:
        """Returns what attention is told in a layout; by default in that of both ends."""
        return self.packed_seq_params_by_layout[self.boundary_layout if layout is None else layout]


class Changed:
    """Settings some of which are others."""

    def __init__(self, config: Any, **changes: Any) -> None:
        self._config = config
        self.__dict__.update(changes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._config, name)


def batches_by_layout(
    cut: Callable[[Any, Any], Any], packs: Any, config: Any, *, is_dynamic_cp: bool
) -> ContextParallelBatch:
    """Returns the next pack in all layouts that a configuration names.

    Args:
        cut: gives this rank's part of the next pack, of an iterator and settings; all tensor-parallel ranks call it.
        packs: the iterator, None where nothing is read.
        config: has linear_cp_layout and attention_cp_layout.
        is_dynamic_cp: whether packs say how many ranks share them.

    Raises:
        ConfigError: there is no configuration.
    """
    if config is None:
        message = "expected `config` for a ContextParallelBatch, found None"
        raise ConfigError(message)
    pack = None if packs is None else next(packs)
    kind = getattr(sys.modules.get("megatron.core.context_parallel"), "ContextParallelBatch", ContextParallelBatch)
    found: ContextParallelBatch = kind(config.linear_cp_layout, {}, {})
    layouts = sorted({config.linear_cp_layout, config.attention_cp_layout})
    for layout in layouts:
        settings = Changed(config, cp_partition_mode=layout)
        *tensors, params, mask = cut(None if pack is None else iter([pack]), settings)
        params = whole_pack_params(params)
        logical, physical = params.cu_seqlens_q, params.cu_seqlens_q_padded
        found.batches_by_layout[layout] = {
            **dict(zip(_NAMES, tensors, strict=True)),
            "padding_mask": mask,
            "cu_seqlens": logical,
            "cu_seqlens_padded": physical,
            "max_seqlen": torch.tensor([params.max_seqlen_q], dtype=torch.int32),
            "local_cp_size": params.local_cp_size,
        }
        is_shared, is_zigzag = mask.numel() < int(physical[-1]), layout == ZIGZAG
        tells_gaps = is_shared and is_zigzag and len(layouts) == 2 and not is_dynamic_cp
        if not tells_gaps:
            params = dataclasses.replace(params, pad_between_seqs=None)
        if not tells_gaps and (is_zigzag or not is_shared):  # attention sees sequences where they lie
            params = dataclasses.replace(params, cu_seqlens_q=physical, cu_seqlens_kv=physical)
        found.packed_seq_params_by_layout[layout] = as_megatrons_params(params)
    return found


def whole_pack_params(params: Any) -> Any:
    """Returns what attention is told, with the tokens of the whole pack, and whether there is padding in it."""
    logical, physical = params.cu_seqlens_q, params.cu_seqlens_q_padded
    has_gaps = not torch.equal(logical, physical)
    return dataclasses.replace(params, total_tokens=int(physical[-1]), pad_between_seqs=has_gaps)
