"""The work of each rank in the cases of `tests/packing/test_exchange.py`."""

import dataclasses
import os
import signal
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from tests.distributed.fleet import Member
from tests.reference.packing import round_up, sample
from tests.support import wait_until
from torch.distributed.device_mesh import init_device_mesh

from tokenloom.distributed.building import do_together
from tokenloom.errors import InputError
from tokenloom.megatron.core.datasets.data_schedule_utils import (
    broadcast_scalars,
    broadcast_tensor,
    get_batch_and_global_seqlens,
    reroute_samples_to_dcp_ranks,
)
from tokenloom.packing.batch import SourcedPackedSeqParams, get_batch_on_this_rank_for_sequence_packing
from tokenloom.packing.config import PackingConfig
from tokenloom.packing.groups import Channel, ProcessGroups, measure_traffic
from tokenloom.packing.pipeline import broadcast_to_stages
from tokenloom.packing.schedulers import DpBalancedScheduler, scheduler_map, wrap_data_iterator, wrap_dataset


@dataclass(frozen=True, kw_only=True)
class Run:
    """A shape of 8 ranks, and the sub-samples of its global batch by position."""

    tp: int = 1
    pp: int = 1
    cp: int = 1
    vpp: int | None = None
    lengths: tuple[int, ...]
    max_tokens: int = 64
    own_padding: int = 1  # multiple to which the data are padded
    mtp: tuple[int, int] | None = None  # pipeline rank and virtual stage of multi-token prediction
    order: tuple[str, ...] = ("pp", "dp", "cp", "tp")
    scheduler: str = "dp_balanced"

    @property
    def dp(self) -> int:
        return 8 // (self.tp * self.pp * self.cp)

    @property
    def alignment(self) -> int:
        return 2 * self.cp if self.cp > 1 else 1

    @property
    def sizes(self) -> dict[str, int]:
        return {"tp": self.tp, "pp": self.pp, "cp": self.cp, "dp": self.dp}

    def coordinates(self, rank: int) -> dict[str, int]:
        shape = [self.sizes[name] for name in self.order]
        return dict(zip(self.order, map(int, np.unravel_index(rank, shape)), strict=True))

    @property
    def config(self) -> PackingConfig:
        layout = None
        if self.mtp is not None:
            layout = [[["decoder"] for _ in range(self.vpp or 1)] for _ in range(self.pp)]
            layout[self.mtp[0]][self.mtp[1]].append("mtp")
        return PackingConfig(
            max_seqlen_per_dp_cp_rank=self.max_tokens,
            sequence_packing_scheduler=self.scheduler,
            virtual_pipeline_model_parallel_size=self.vpp,
            microbatch_group_size_per_vp_stage=None if self.vpp is None else 2,
            pipeline_model_parallel_layout=layout,
        )

    def has_tokens(self, pp_rank: int, stage: int) -> bool:
        is_first = (pp_rank, stage) == (0, 0)
        is_last = (pp_rank, stage) == (self.pp - 1, (self.vpp or 1) - 1)
        return is_first or is_last or (pp_rank, stage) == self.mtp

    def positions_of(self, at: dict[str, int]) -> range:
        return range(at["dp"], len(self.lengths), self.dp)

    @property
    def positions_by_id(self) -> list[int]:
        return [position for rank in range(self.dp) for position in self.positions_of({"dp": rank})]


class Data:
    def __init__(self, run: Run) -> None:
        self._run = run
        self.read: list[int] = []

    def __len__(self) -> int:
        return len(self._run.lengths)

    def lengths(self, positions: np.ndarray) -> np.ndarray:
        return np.array(self._run.lengths, dtype=np.int64)[positions]

    def padded_lengths(self, positions: np.ndarray) -> np.ndarray:
        return np.array([round_up(int(length), self._run.own_padding) for length in self.lengths(positions)])

    def __getitem__(self, position: int) -> dict[str, Any]:
        self.read.append(position)
        length = self._run.lengths[position]
        padded = round_up(length, self._run.own_padding)
        item = {
            name: torch.from_numpy(np.pad(value, (0, padded - length), constant_values=7))
            for name, value in sample(position, length).items()
        }
        lengths = {"original_seq_len": torch.tensor([length]), "padded_seq_len": torch.tensor([padded])}
        return {**item, **lengths, "dataset_id": position % 3}


class Rank(Member):
    def __init__(self, rank: int, world_size: int, shared: Path) -> None:
        super().__init__(rank, world_size, shared)
        self._groups: dict[Any, ProcessGroups] = {}

    def groups(self, run: Run) -> ProcessGroups:
        hybrid = scheduler_map[run.scheduler].is_dynamic_cp
        key = (run.tp, run.pp, run.cp, run.order, hybrid)
        if key not in self._groups:
            mesh = init_device_mesh("cpu", [run.sizes[name] for name in run.order], mesh_dim_names=run.order)
            sizes = [2**k for k in range(1, (run.dp * run.cp).bit_length())] if hybrid else []
            self._groups[key] = ProcessGroups.from_mesh(mesh, cp_sizes=sizes)
        return self._groups[key]


def _given(me: Rank, run: Run, data: Data) -> Any:
    """Returns an iterator on ranks that need tokens, or with virtual stages a list."""
    at = run.coordinates(me.rank)
    given = [
        (data[position] for position in run.positions_of(at))
        if at["tp"] == 0 and run.has_tokens(at["pp"], stage)
        else None
        for stage in range(run.vpp or 1)
    ]
    return given if run.vpp is not None else given[0]


def exchanged(me: Rank, run: Run, data: Data, config: Any = None) -> Any:
    mine = run.positions_of(run.coordinates(me.rank))
    return wrap_data_iterator(_given(me, run, data), config or run.config, len(mine), me.groups(run))


def read_alone(me: Rank, run: Run, data: Data) -> Any:
    return wrap_dataset(data, range(len(run.lengths)), run.config, me.groups(run))


def wrap(me: Rank, run: Run, mode: str) -> dict[str, Any]:
    groups, at, data = me.groups(run), run.coordinates(me.rank), Data(run)
    with measure_traffic() as traffic:
        wrapped = (exchanged if mode == "exchange" else read_alone)(me, run, data)
    iterators, count, *sums = wrapped
    stages: list[Any] = []
    for stage in range(run.vpp or 1):
        iterator = iterators if run.vpp is None else iterators[stage]
        assert (iterator is None) == (at["tp"] > 0)
        mtp = run.mtp == (at["pp"], stage)
        arguments = {"vpp_size": run.vpp, "vp_stage": None if run.vpp is None else stage, "mtp_on_this_rank": mtp}
        stages.append([])
        for _ in range(count):
            batch = get_batch_on_this_rank_for_sequence_packing(iterator, pg_collection=groups, **arguments)
            stages[-1].append(_described(batch, groups))
        assert iterator is None or next(iterator, None) is None
    kept = None if iterators is None else type(iterators).__name__
    found = {"count": count, "sums": sums, "stages": stages, "read": data.read}
    return {**found, "sent_bytes": dict(traffic), "kept": kept}


def fill(me: Rank, run: Run, settings: dict[str, Any]) -> list[Any]:
    config = dataclasses.replace(run.config, **settings)
    iterator, count, *_ = exchanged(me, run, Data(run), config)
    taken = []
    for _ in range(count):
        batch = get_batch_on_this_rank_for_sequence_packing(iterator, pg_collection=me.groups(run), config=config)
        tokens, mask, params = batch[0], batch[6], batch[5]
        bounds = [params.cu_seqlens_q.tolist(), params.cu_seqlens_q_padded.tolist()]
        taken.append((list(tokens.shape), tokens.tolist()[0], mask.tolist()[0], bounds))
    return taken


def trees(me: Rank, run: Run, stems: int) -> dict[str, Any]:
    mine = run.positions_of(run.coordinates(me.rank))
    items = (rollout(position, run.lengths[position], stems) for position in mine)
    packs, count, *sums = wrap_data_iterator(items, run.config, len(mine), me.groups(run))
    rows = [
        (pack.sequences.tolist(), pack.num_tokens, len(pack.tokens), [row.tolist() for row in pack.split(pack.labels)])
        for pack in packs
    ]
    return {"count": count, "sums": sums, "packs": rows}


def rollout(number: int, length: int, stems: int) -> dict[str, Any]:
    """Returns a sub-sample with one of `stems` prefixes of 8 tokens."""
    tokens = torch.tensor([number % stems] * 8 + [100 + number] * (length - 8))
    labels, places = torch.full_like(tokens, number), torch.arange(length)
    return {"tokens": tokens, "labels": labels, "loss_mask": torch.ones(length), "position_ids": places}


def differ(me: Rank, run: Run) -> Any:
    class Mine(DpBalancedScheduler):
        def get_groups_and_subsamples(self, sample_id_seqlens: Any) -> Any:
            groups = super().get_groups_and_subsamples(sample_id_seqlens)
            return groups[::-1] if me.rank else groups

    scheduler_map["mine"] = Mine
    try:
        return wrap(me, dataclasses.replace(run, scheduler="mine"), "exchange")
    finally:
        del scheduler_map["mine"]


def _described(batch: Any, groups: ProcessGroups) -> dict[str, Any]:
    tokens, labels, loss_mask, attention_mask, position_ids, params, padding_mask = batch
    assert attention_mask is None
    assert params.qkv_format == "thd"
    assert params.max_seqlen_q == params.max_seqlen_kv
    boundaries = [params.cu_seqlens_q, params.cu_seqlens_kv, params.cu_seqlens_q_padded, params.cu_seqlens_kv_padded]
    assert len({tuple(row.tolist()) for row in boundaries}) == 1
    assert {row.dtype for row in boundaries} == {torch.int32}
    shared = None
    if params.cp_group is not None:  # the index of its first rank in dp × cp
        whole = dist.get_process_group_ranks(groups.dp_cp)
        shared = whole.index(dist.get_process_group_ranks(params.cp_group)[0])
    named = {"tokens": tokens, "labels": labels, "loss_mask": loss_mask, "position_ids": position_ids}
    return {
        **{name: None if value is None else (str(value.dtype), value.numpy()) for name, value in named.items()},
        "padding_mask": (str(padding_mask.dtype), padding_mask.numpy()),
        "cu_seqlens_padded": params.cu_seqlens_q.tolist(),
        "max_seqlen": params.max_seqlen_q,
        "local_cp_size": params.local_cp_size,
        "sources": params.dataset_ids.tolist() if isinstance(params, SourcedPackedSeqParams) else None,
        "cp_group": shared,
    }


class Cursed(torch.Tensor):
    """A tensor that calls `harm` when a rank turns it into bytes to send it."""

    harm: Any = None

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.Tensor.view:
            cls.harm()
        return super().__torch_function__(function, types, args, kwargs)


def break_in(me: Rank, run: Run, mode: str, victim: int, how: str, where: str) -> Any:
    if how != "raise":  # all ranks know the victim before it dies
        do_together("painting", lambda: "blue")
    frozen: list[bool] = []

    def harm() -> None:
        if how == "die":
            me.die()
        if how == "freeze":
            if not frozen:  # once
                frozen.append(True)
                os.kill(os.getpid(), signal.SIGSTOP)
            return
        raise InputError("broken data", hint="mend the data")

    class Broken(Data):
        def __getitem__(self, position: int) -> dict[str, Any]:
            item = super().__getitem__(position)
            if where == "reading":
                harm()
            item["tokens"] = item["tokens"].as_subclass(Cursed)
            return item

    Cursed.harm = staticmethod(harm)
    data = Broken(run) if me.rank == victim else Data(run)
    return (exchanged if mode == "exchange" else read_alone)(me, run, data)[1]


def die_at_any_moment(me: Rank, run: Run, victim: int, delay_seconds: float) -> Any:
    me.groups(run)  # torch would wait for the victim to join its groups
    (me.shared / f"ready-{me.rank}").touch()
    if me.rank == victim:
        wait_until(lambda: len(list(me.shared.glob("ready-*"))) == dist.get_world_size())
        threading.Timer(delay_seconds, me.die).start()
    while True:
        exchanged(me, run, Data(run))


def wrong_input(me: Rank, run: Run, who: int, what: str) -> Any:
    data, mine = Data(run), run.positions_of(run.coordinates(me.rank))
    iterator = _given(me, run, data)
    if me.rank == who:
        others = Data(dataclasses.replace(run, lengths=tuple(length + 1 for length in run.lengths)))
        iterator = {
            "none": None,
            "one": iter([data[0]]),
            "short": iter([data[0]]),
            "other lengths": (others[position] for position in mine),
            "no labels": iter([{"tokens": torch.zeros(3)}] * len(mine)),
        }[what]
    return wrap_data_iterator(iterator, run.config, len(mine), me.groups(run))[1]


def wrong_dataset(me: Rank, run: Run, who: int, what: str) -> Any:
    data, positions = Data(run), np.arange(len(run.lengths))
    if me.rank == who and what == "positions":
        positions = positions[::-1].copy()
    if me.rank == who and what == "lengths":
        longer = Data(dataclasses.replace(run, lengths=tuple(length + 1 for length in run.lengths)))
        longer.lengths, longer.padded_lengths = data.lengths, data.padded_lengths  # type: ignore[method-assign]
        data = longer
    return wrap_dataset(data, positions, run.config, me.groups(run))[1]


def fail_to_read_a_pack(me: Rank, run: Run) -> Any:
    return get_batch_on_this_rank_for_sequence_packing(None, pg_collection=me.groups(run))


def broadcast_large_numbers(me: Rank, run: Run) -> Any:
    groups, at = me.groups(run), run.coordinates(me.rank)
    numbers = (2**24 + 1, 2**53 + 1, 2**63 - 1)
    pack = {
        "cu_seqlens": torch.tensor([0, 2**24 + 1, 2**31 - 9], dtype=torch.int32),
        "cu_seqlens_padded": torch.tensor([0, 2**24 + 8, 2**31 - 1], dtype=torch.int32),
        "max_seqlen": torch.tensor(2**31 - 1, dtype=torch.int32),
        "local_cp_size": 4,
    }
    has_tokens = run.has_tokens(at["pp"], 0)
    given = ([pack, pack], numbers) if has_tokens else (None, (0, 0, 0))
    packs, told = broadcast_to_stages(*given, Channel(groups.pp), torch.device("cpu"))
    scalars = broadcast_scalars(numbers if at["tp"] == 0 else [0, 0, 0], groups.tp, torch.device("cpu"), torch.int64)
    row = torch.full((3,), me.rank)
    broadcast_tensor(row, dist.get_process_group_ranks(groups.tp)[1], groups.tp)
    broadcast_tensor(None, 0, groups.tp)
    return (
        [{name: torch.as_tensor(value).tolist() for name, value in one.items()} for one in packs],
        list(told),
        scalars,
        row.tolist(),
    )


def reroute(me: Rank, run: Run) -> Any:
    """Calls the utilities of Megatron one by one."""
    groups, at, data = me.groups(run), run.coordinates(me.rank), Data(run)
    mine = run.positions_of(at)
    batch, pairs, mine, offsets, _ = get_batch_and_global_seqlens((data[i] for i in mine), len(mine), groups.dp)
    rank = groups.dp_cp.rank()
    ids = [number for number, _ in pairs]
    everywhere = [[ids[: rank + 1] for rank in range(run.dp * run.cp)]]  # rank r works on the first r + 1
    samples = reroute_samples_to_dcp_ranks(batch, mine, pairs, everywhere, offsets, groups.dp, groups.tp, groups.dp_cp)
    assert all(one["dataset_id"] == run.positions_by_id[number] % 3 for number, one in samples.items())
    return rank, pairs, {number: one["tokens"].tolist() for number, one in samples.items()}


def use_world_groups(me: Rank, run: Run) -> Any:
    key = (run.tp, run.pp, run.cp, run.order, False)
    me._groups[key] = ProcessGroups(dp=dist.group.WORLD, dp_cp=dist.group.WORLD)
    wrap(me, run, "exchange")
    return break_in(me, run, "exchange", 2, "raise", "exchange")
