"""Client code as forks and providers write it, run on megatron-core's data classes and on `tokenloom.megatron`.

Each case is one function of a namespace of modules: what it returns must be the same of both, and what it raises must
be caught by who catches what the peer raises.
"""

import dataclasses
import importlib
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.support import EOD, StandInTokenizer, random_documents, write_corpus
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, default_collate

from tokenloom.datasets.shortcuts import fills_batches, makes_batches

pytestmark = [pytest.mark.peer, pytest.mark.usefixtures("quiet")]

pytest.importorskip("megatron.core")

MODULES = (
    *("blended_dataset", "blended_megatron_dataset_builder", "blended_megatron_dataset_config", "gpt_dataset"),
    *("helpers", "indexed_dataset", "megatron_dataset", "utils"),
)
CASES = {}


def case(client):
    """Registers client code under its name."""
    CASES[client.__name__] = client
    return client


@dataclass
class Side:
    """One of the two packages, and a folder of its own for a case."""

    mg: SimpleNamespace
    prefixes: list[str]
    folder: Path

    def config(self, kind=None, **settings):
        names = ("reset_position_ids", "reset_attention_mask", "eod_mask_loss", "create_attention_mask")
        usual = {"random_seed": 7, "sequence_length": 8, "tokenizer": StandInTokenizer(), **dict.fromkeys(names, False)}
        usual["path_to_cache"] = str(self.folder)
        if "blend_per_split" not in settings and not settings.pop("mock", False):
            usual |= {"blend": ([self.prefixes[0]], None), "split": "70,20,10"}
        return (kind or self.mg.gpt_dataset.GPTDatasetConfig)(**(usual | settings))

    def build(self, cls=None, sizes=(40, 8, 0), builder=None, **settings):
        kind = builder or self.mg.blended_megatron_dataset_builder.BlendedMegatronDatasetBuilder
        made = kind(cls or self.mg.gpt_dataset.GPTDataset, list(sizes), lambda: True, self.config(**settings))
        return made.build()

    def train(self, cls=None, **settings):
        return self.build(cls, **settings)[0]

    def blend(self, cls=None, **settings):
        return self.train(cls, blend=(self.prefixes, [0.5, 0.3, 0.2]), **settings)


def plain(value):
    """Returns a value by what it holds: dtype, shape and numbers of arrays, and the class of a tensor."""
    if isinstance(value, torch.Tensor):
        return ["tensor", str(value.dtype), list(value.shape), value.tolist()]
    if isinstance(value, (np.ndarray, np.generic)):
        return ["array", str(value.dtype), list(value.shape), value.tolist()]
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def batches(dataset, **options):
    """Returns the first batches of a loader of torch."""
    loader = DataLoader(dataset, batch_size=4, **options)
    return [batch for batch, _ in zip(loader, range(2), strict=False)]


@contextmanager
def replaced(module, name, value):
    """Puts something else under a name of a module, as patches do."""
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield before
    finally:
        setattr(module, name, before)


def without_loss(base):
    class Mine(base):
        def __getitem__(self, idx):
            sample = super().__getitem__(idx)
            sample["loss_mask"] = torch.zeros_like(sample["loss_mask"])
            sample["extra"] = torch.tensor([idx, 1])
            return sample

    return Mine


def counted(base, *names):
    """Returns a class that overrides methods to count their calls, and the counts."""
    calls = Counter()

    def method(name):
        def called(self, *given, **named):
            calls[name] += 1
            return getattr(super(mine, self), name)(*given, **named)

        return called

    mine = type("Mine", (base,), {name: method(name) for name in names})
    return mine, calls


# --- samples that a class changes -------------------------------------------------------------------------------------


@case
def getitem_override(side):
    mine = without_loss(side.mg.gpt_dataset.GPTDataset)
    dataset, blend = side.train(mine), side.blend(mine)
    chosen = Subset(dataset, [3, 1, 2, 0])
    return dataset[0], batches(dataset), batches(blend), batches(chosen), batches(ConcatDataset([dataset, dataset]))


@case
def getitem_override_of_the_blend(side):
    mine = without_loss(side.mg.blended_dataset.BlendedDataset)
    parts = [side.train(blend=([prefix], None)) for prefix in side.prefixes[:2]]
    blend = mine(parts, [0.5, 0.5], 20, side.config())
    return blend[0], batches(blend)


@case
def getitem_override_in_workers(side):
    dataset = side.train(without_loss(side.mg.gpt_dataset.GPTDataset))
    return batches(dataset, num_workers=1, multiprocessing_context="fork")


@case
def mock_getitem_override(side):
    return batches(side.train(without_loss(side.mg.gpt_dataset.MockGPTDataset), mock=True))


def reversed_text(base):
    class Mine(base):
        def _query_document_sample_shuffle_indices(self, idx):
            text, *rest = super()._query_document_sample_shuffle_indices(idx)
            return np.ascontiguousarray(text[::-1]), *rest

    return Mine


@case
def query_override(side):
    mine = reversed_text(side.mg.gpt_dataset.GPTDataset)
    settings = [{}, {"add_extra_token_to_sequence": False, "create_attention_mask": True}]
    settings += [{"reset_position_ids": True, "reset_attention_mask": True, "eod_mask_loss": True}]
    datasets = [side.train(mine, path_to_cache=f"{side.folder}/{k}", **each) for k, each in enumerate(settings)]
    return [(dataset[0], dataset[None], batches(dataset)) for dataset in datasets], batches(side.blend(mine))


@case
def query_called_by_user(side):
    class Mine(side.mg.gpt_dataset.GPTDataset):
        def __getitem__(self, idx):
            return {"text": self._query_document_sample_shuffle_indices(idx)[0]}

    dataset = side.train(Mine)
    return dataset[1], dataset._query_document_sample_shuffle_indices(2), batches(dataset)


@case
def query_of_other_lengths(side):
    class Mine(side.mg.gpt_dataset.GPTDataset):
        def _query_document_sample_shuffle_indices(self, idx):
            text, *rest = super()._query_document_sample_shuffle_indices(idx)
            return np.concatenate([text, text]), *rest

    return batches(side.train(Mine))


@case
def fill_in_the_middle_over_the_arrays(side):
    """The reference's own subclass reads the three arrays and `dataset.get`, and draws from a generator of its own."""

    class Mine(side.mg.gpt_dataset.GPTDataset):
        def __init__(self, *given):
            super().__init__(*given)
            self.np_rng = np.random.RandomState(seed=self.config.random_seed)

        def _query_document_sample_shuffle_indices(self, idx):
            idx = self.shuffle_index[idx]
            (first, start), (last, stop) = self.sample_index[idx], self.sample_index[idx + 1]
            parts, documents = [], []
            for place in range(first, last + 1):
                offset = start if place == first else 0
                length = stop - offset + 1 if place == last else None
                documents.append(self.document_index[place])
                parts.append(self.dataset.get(self.document_index[place], offset=offset, length=length))
            text = np.concatenate(parts)
            cut = self.np_rng.randint(1, len(text))
            text = np.concatenate([[50], text[cut:], [51], text[:cut]])[: len(text)]
            found = np.array(text, dtype=np.int64), np.array(documents, dtype=np.int64), [len(text)]
            return found[: len(super()._query_document_sample_shuffle_indices(0))]

    dataset = side.train(Mine)
    return [dataset[k] for k in range(12)], batches(dataset)


@case
def boundaries_of_a_query(side):
    if "inter_document_masking" not in REFERENCE_FIELDS:
        return None
    found = []
    for number, extra in enumerate((True, False)):
        folder, settings = f"{side.folder}/{number}", {"split": "70,30", "add_extra_token_to_sequence": extra}
        settings |= {"inter_document_masking": True, "drop_last_partial_validation_sequence": False}
        for cls in (side.mg.gpt_dataset.GPTDataset, reversed_text(side.mg.gpt_dataset.GPTDataset)):
            train, valid, _ = side.build(cls, sizes=(9, None, 0), path_to_cache=folder, **settings)
            found += [(dataset[0], dataset[len(dataset) - 1], batches(dataset)) for dataset in (train, valid)]
    return found


@case
def three_values_asked_of_a_version_with_two(side):
    class Mine(side.mg.gpt_dataset.GPTDataset):
        def _query_document_sample_shuffle_indices(self, idx):
            text, documents, lengths = super()._query_document_sample_shuffle_indices(idx)
            return text, documents, lengths

    return side.train(Mine)[0]


# --- how orders are built ---------------------------------------------------------------------------------------------


@case
def building_override(side):
    class Mine(side.mg.gpt_dataset.GPTDataset):
        def _build_document_sample_shuffle_indices(self):
            documents, samples, shuffle = super()._build_document_sample_shuffle_indices()
            return documents, samples, np.arange(len(shuffle), dtype=shuffle.dtype)

    dataset = side.train(Mine)
    return len(dataset), dataset.shuffle_index, batches(dataset), batches(side.blend(Mine)), files(side)


@case
def building_override_that_changes_nothing(side):
    mine, calls = counted(side.mg.gpt_dataset.GPTDataset, "_build_document_sample_shuffle_indices")
    dataset = side.train(mine)
    return dict(calls), [dataset[k] for k in range(5)], files(side)


@case
def arrays_assigned_by_a_class(side):
    class Mine(side.mg.gpt_dataset.GPTDataset):
        def __init__(self, *given):
            super().__init__(*given)
            self.shuffle_index = np.array(self.shuffle_index)[::-1].copy()

    dataset = side.train(Mine)
    return dataset.shuffle_index[:10], batches(dataset)


@case
def arrays_assigned_from_outside(side):
    found = []
    for name, change in {
        "shuffle_index": lambda array: array[::-1],
        "shuffle_index ": lambda array: array[array % 2 == 0],
        "sample_index": lambda array: array[::2],
        "document_index": lambda array: np.full_like(array, array[np.argmax(array)]),
    }.items():
        dataset = side.train()
        setattr(dataset, name.strip(), change(np.array(getattr(dataset, name.strip()))))
        rows = min(len(dataset), len(dataset.shuffle_index) // 2, 3)
        rows = [k for k in range(len(dataset.shuffle_index)) if dataset.shuffle_index[k] < len(dataset)][:rows]
        if name == "document_index":
            rows = []
        found.append((len(dataset), [dataset[k] for k in rows], getattr(dataset, name.strip())))
    return found


@case
def epoch_hooks(side):
    names = ("_get_num_epochs", "_get_num_tokens_per_epoch")
    mine, calls = counted(side.mg.gpt_dataset.GPTDataset, *names)
    dataset = side.train(mine, sizes=(300, 0, 0))
    tokens = dataset._get_num_tokens_per_epoch()
    return all(calls[name] for name in names), len(dataset), tokens, dataset._get_num_epochs(tokens), batches(dataset)


@case
def epochs_of_a_class(side):
    class Mine(side.mg.gpt_dataset.GPTDataset):
        def _get_num_epochs(self, num_tokens_per_epoch):
            return 3

    found = []
    for size in (130, 10):
        try:
            dataset = side.train(Mine, sizes=(size, 0, 0))
            found.append((len(dataset), dataset.shuffle_index, batches(dataset)))
        except AssertionError:
            found.append("AssertionError")
    return found


@case
def tokens_of_a_class(side):
    class Mine(side.mg.gpt_dataset.GPTDataset):
        def _get_num_tokens_per_epoch(self):
            return super()._get_num_tokens_per_epoch() // 2

    dataset = side.train(Mine, sizes=(10, 0, 0))
    return len(dataset), dataset.sample_index, dataset.shuffle_index, batches(dataset)


@case
def patched_functions(side):
    found = []
    gpt, helpers = side.mg.gpt_dataset, side.mg.helpers

    def unshuffled(documents, num_epochs, numpy_random_state, separate_final_epoch):
        return np.tile(documents, num_epochs).astype(np.int32)

    def backwards(num_samples, total_size, numpy_random_state):
        return np.arange(total_size, dtype=np.uint32)[::-1].copy()

    for number, (module, name, value) in enumerate(
        [
            (gpt, "_build_document_index", unshuffled),
            (gpt, "_build_shuffle_index", backwards),
            (helpers, "build_sample_idx", lambda *given: before(*given)[::-1].copy()[::-1]),
        ]
    ):
        with replaced(module, name, value) as before:
            for _ in range(2):  # built, then from the cache
                dataset = side.train(path_to_cache=f"{side.folder}/{number}")
                found.append((len(dataset), dataset.document_index, dataset.shuffle_index, dataset[0]))
            found.append(files(side, str(number)))
    return found


@case
def functions_called_by_user(side):
    gpt, found = side.mg.gpt_dataset, []
    for separate in (False, True):
        random = np.random.RandomState(3)
        found.append(gpt._build_document_index(np.arange(5, 12, dtype=np.int32), 3, random, separate))
        found.append(gpt._build_shuffle_index(10 if separate else 17, 17, random))
    data = torch.tensor([1, EOD, 2, 3, EOD, EOD, 4, 5])
    for flags in np.ndindex(2, 2, 2, 2):
        found.append(gpt._get_ltor_masks_and_position_ids(data, EOD, *map(bool, flags)))
    return found


@case
def patched_masks(side):
    def masks(data, eod_token, *flags):
        attention_mask, loss_mask, position_ids = before(data, eod_token, *flags)
        loss_mask[data == 3] = 0.5
        return attention_mask, loss_mask, position_ids + 1

    found = []
    with replaced(side.mg.gpt_dataset, "_get_ltor_masks_and_position_ids", masks) as before:
        for settings in ({"eod_mask_loss": True}, {}, {"create_attention_mask": True}):
            dataset = side.train(**settings)
            found.append((dataset[0], batches(dataset), batches(side.blend(**settings))))
    return found


@case
def cached_masks(side):
    dataset = side.train()
    before = dataset.masks_and_position_ids_are_cacheable, dataset._pad_token_id
    dataset.cached_loss_mask = torch.arange(8).float()
    dataset.cached_position_ids = torch.arange(8).flip(0)
    dataset.masks_and_position_ids_are_cached = True
    others = [side.train(**{name: True}) for name in ("reset_position_ids", "reset_attention_mask", "eod_mask_loss")]
    return before, batches(dataset), [other.masks_and_position_ids_are_cacheable for other in others]


@case
def deferred(side):
    per_split = [(side.prefixes, [0.5, 0.3, 0.2]), (side.prefixes[:1], None), None]
    side.build(blend_per_split=per_split)
    fast = [dataset and dataset[3] for dataset in side.build(blend_per_split=per_split, fast_cache_load=True)]
    blend, single, _ = side.build(blend_per_split=per_split, defer_npy_index_mmap=True)
    names = ["document_index", "sample_index", "shuffle_index"]
    before = [len(blend), len(single), blend.dataset_index, *(getattr(single, name) for name in names)]
    paths = [Path(getattr(single, f"path_to_{name}")).name for name in names]
    paths += [Path(getattr(blend, f"path_to_{name}")).name for name in ("dataset_index", "dataset_sample_index")]
    samples = blend[5], single[1]
    return before, paths, fast, samples, single.shuffle_index, blend.dataset_sample_index


# --- low-level datasets -----------------------------------------------------------------------------------------------


@case
def low_level_of_the_user(side):
    class Low:
        def __init__(self):
            self.sequence_lengths = np.arange(1, 40, dtype=np.int32)
            self.path_prefix = str(side.folder)

        def get(self, idx, offset=0, length=None):
            return (np.arange(self.sequence_lengths[idx], dtype=np.int64) % 17)[offset:][:length]

    def make(path_to_cache):
        split = side.mg.utils.Split.train
        config = side.config(mock=True, path_to_cache=path_to_cache)
        return side.mg.gpt_dataset.GPTDataset(Low(), None, np.arange(39, dtype=np.int32), 50, split, config)

    return [(dataset[0], dataset[7], batches(dataset)) for dataset in (make(None), make(str(side.folder)))]


@case
def low_level_hooks(side):
    class Low(side.mg.indexed_dataset.IndexedDataset):
        def get(self, idx, offset=0, length=None):
            return super().get(idx, offset=offset, length=length) + 1

    class Wrapper:
        def __init__(self, inner):
            self.inner = inner

        def __getattr__(self, name):
            if name == "inner":
                raise AttributeError(name)
            return getattr(self.inner, name)

        def get(self, idx, offset=0, length=None):
            return self.inner.get(idx, offset=offset, length=length) + 2

    found, parent = [], side.mg.gpt_dataset.GPTDataset
    for opened in (Low, lambda prefix: Wrapper(side.mg.indexed_dataset.IndexedDataset(prefix))):

        class Mine(parent):
            opens = staticmethod(opened)

            @staticmethod
            def numel_low_level_dataset(low_level_dataset):
                return low_level_dataset.sequence_lengths.shape[0] // 2

            @staticmethod
            def build_low_level_dataset(dataset_path, config):
                return Mine.opens(dataset_path)

            @staticmethod
            def _key_config_attributes():
                return [*parent._key_config_attributes(), "eod_mask_loss"]

        dataset = side.train(Mine)
        found.append((dataset[0], batches(dataset), batches(side.blend(Mine)), dataset.unique_description))
    return found


# --- datasets of torch ------------------------------------------------------------------------------------------------


@case
def of_torch(side):
    dataset, blend = side.train(), side.blend()
    both = dataset + dataset
    types = [isinstance(each, Dataset) for each in (dataset, blend)]
    types += [isinstance(dataset, side.mg.megatron_dataset.MegatronDataset)]
    return types, len(both), len(blend + dataset), both[len(dataset) + 1], type(both).__name__


@case
def collate_functions(side):
    seen = []

    def writes(batch):
        for sample in batch:
            sample["tokens"] = sample["tokens"] * 0
            sample["labels"][:] = 5
        seen.append((type(batch).__name__, {name: type(value).__name__ for name, value in batch[0].items()}))
        return default_collate(batch)

    settings = {"create_attention_mask": True}
    return batches(side.train(**settings), collate_fn=writes), batches(side.blend(), collate_fn=writes), seen


@case
def split_is_the_references(side):
    theirs = importlib.import_module("megatron.core.datasets.utils").Split
    dataset = side.train()
    return (
        dataset.index_split == theirs.train,
        theirs.train == dataset.index_split,
        hash(theirs.train) == hash(dataset.index_split),
    )


# --- builders ---------------------------------------------------------------------------------------------------------

STEPS = ("_build_megatron_dataset_splits", "_build_megatron_datasets_parallel", "_build_blended_dataset_splits")

BUILDS = {
    "single": {},
    "weighted": {"blend": 3, "weights": [0.5, 0.3, 0.2]},
    "proportional": {"blend": 3, "sizes": (None, 9, 0)},
    "threads": {"blend": 3, "weights": [1, 2, 3], "num_dataset_builder_threads": 3},
    "mock": {"mock": True, "cls": "MockGPTDataset"},
    "per split": {"per_split": True},
    "validation sets": {
        **dict.fromkeys(("per_split", "multiple_validation_sets", "full_validation"), True),
        "sizes": (9, None, 0),
    },
}


def drawn(side, options, **given):
    options = dict(options)
    settings = {}
    if number := options.pop("blend", None):
        settings["blend"] = side.prefixes[:number], options.pop("weights", None)
    if options.pop("per_split", False):
        settings["blend_per_split"] = [(side.prefixes, [0.2, 0.3, 0.5]), (side.prefixes, None), None]
    cls = getattr(side.mg.gpt_dataset, options.pop("cls", "GPTDataset"))
    return side.build(cls, **settings, **options, **given)


def outline(datasets):
    """Returns what a builder has built."""
    flat = [each for dataset in datasets for each in (dataset if isinstance(dataset, list) else [dataset])]
    return [
        (type(each).__name__, len(each), plain(each[0]), plain(each[-1]), each.unique_description) if each else None
        for each in flat
    ]


@case
def builders(side):
    return {name: outline(drawn(side, options)) for name, options in BUILDS.items()}


@case
def builder_hooks(side):
    kind = side.mg.blended_megatron_dataset_builder.BlendedMegatronDatasetBuilder
    found = {}
    for name, options in BUILDS.items():
        mine, calls = counted(kind, *STEPS)
        found[name] = outline(drawn(side, options, builder=mine)), dict(calls)
    return found


@case
def generic_dataset(side):
    kind, calls = side.mg.blended_megatron_dataset_builder.BlendedMegatronDatasetBuilder, []

    class Mine(kind):
        @staticmethod
        def build_generic_dataset(cls, is_built_on_rank, synchronize_ranks, *args):
            calls.append((cls.__name__, synchronize_ranks, len(args)))
            return kind.build_generic_dataset(cls, is_built_on_rank, synchronize_ranks, *args)

    found = [outline(drawn(side, BUILDS[name], builder=Mine)) for name in ("single", "weighted", "per split")]
    return found, calls, len(kind.build_generic_dataset(list, lambda: True, False, range(300)))


@case
def dataset_of_the_user(side):
    class Config(side.mg.blended_megatron_dataset_config.BlendedMegatronDatasetConfig):
        pass

    class Lines(side.mg.megatron_dataset.MegatronDataset):
        @staticmethod
        def numel_low_level_dataset(low_level_dataset):
            return len(low_level_dataset)

        @staticmethod
        def build_low_level_dataset(dataset_path, config):
            return [f"{Path(dataset_path).name} {number}" for number in range(20)]

        def __len__(self):
            return self.num_samples or len(self.indices)

        def __getitem__(self, idx):
            return {"text": self.dataset[self.indices[idx % len(self.indices)]], "row": torch.tensor(idx)}

    settings = {"random_seed": 3, "sequence_length": 4, "split": "8,1,1", "tokenizer": StandInTokenizer()}
    builder = side.mg.blended_megatron_dataset_builder.BlendedMegatronDatasetBuilder
    config = Config(**settings, blend=(["a", "b"], [0.5, 0.5]), path_to_cache=str(side.folder))
    train, valid, test = builder(Lines, [10, 4, 2], lambda: True, config).build()
    return batches(train), valid[0], test[1], train.datasets[0].indices, train.unique_description


@case
def blend_indices_of_a_class(side):
    class Mine(side.mg.blended_dataset.BlendedDataset):
        def _build_indices(self):
            index, samples = super()._build_indices()
            return index[::-1].copy(), samples[::-1].copy()

    parts = [side.train(blend=([prefix], None)) for prefix in side.prefixes[:2]]
    blend = Mine(parts, [3.0, 1.0], 20, side.config())
    other = side.mg.blended_dataset.BlendedDataset(parts, [3.0, 1.0], 20, side.config())
    other.dataset_index = np.zeros(20, dtype=np.int64)
    return blend.dataset_index, batches(blend), len(blend), other[7], batches(other)


# --- settings ---------------------------------------------------------------------------------------------------------


SETTINGS = {
    "usual": {},
    "split of two": {"split": "3, 1"},
    "split with colons": {"split": "8:1:1"},
    "split of four": {"split": "1,1,1,1"},
    "split with a hole": {"split": "1,0,1"},
    "blend without split": {"split": None},
    "blend of other lengths": {"blend": (["a", "b"], [1.0])},
    "blend with zero": {"blend": (["a", "b"], [0.0, 1.0])},
    "blend of tuples": {"blend": (("a", "b"), (1.0, 2.0))},
    "fast cache with blend": {"fast_cache_load": True},
    "fast cache without cache": {"fast_cache_load": True, "blend": None, "path_to_cache": None},
    "deferred without cache": {"defer_npy_index_mmap": True, "path_to_cache": None},
    "negative seed": {"random_seed": -1},
    "both kinds of blends": {"blend_per_split": [(["a"], None), None, None], "blend": (["a"], None)},
    "two blends": {"blend_per_split": [(["a"], None), None]},
    "no blends": {"blend_per_split": [None, None, None], "blend": None, "split": None},
    "no tokenizer": {"tokenizer": None},
    "no flag": {"eod_mask_loss": None},
    "counts without vocabulary": {"sequences_per_dataset": {}, "tokenizer": StandInTokenizer(vocab_size=None)},
    "wide tokens": {"tokenizer": StandInTokenizer(vocab_size=65537)},
    "narrow tokens": {"tokenizer": StandInTokenizer(vocab_size=65536)},
    "of made-up data": {"mock": True},
}


@case
def settings(side):
    found = {}
    for name, given in SETTINGS.items():
        try:
            held = side.config(**given)
            found[name] = {
                key: getattr(held, key) for key in REFERENCE_FIELDS if key not in ("tokenizer", "path_to_cache")
            }
        except AssertionError:
            found[name] = "AssertionError"
    config = side.mg.blended_megatron_dataset_config
    matrices = [config.convert_split_vector_to_split_matrix(*vectors) for vectors in VECTORS]
    return found, matrices, config.parse_and_normalize_split("949,50,1")


VECTORS = [([0.9, 0.09, 0.01],), ([0.99, 0.01, 0.0], [0.98, 0.02, 0.0]), ([1.0, 0.0, 0.0], [0.0, 0.5, 0.5])]


@case
def settings_by_place(side):
    names = REFERENCE_FIELDS[:13]
    taken = [5, 8, (["a"], None), None, None, None, "1,1,1", 2, "c", False, StandInTokenizer(), 0.5, True]
    config = side.mg.blended_megatron_dataset_config.BlendedMegatronDatasetConfig(*taken)
    return {name: getattr(config, name) for name in names if name != "tokenizer"}


REFERENCE_FIELDS = []


@case
def provider(side):
    """A provider's configuration class adds settings, waits with its checks, and is taken apart into a dictionary."""

    @dataclass
    class Config(side.mg.gpt_dataset.GPTDatasetConfig):
        random_seed: int | None = None
        sequence_length: int | None = None
        skip_getting_attention_mask_from_dataset: bool = True
        dataloader_type: str = "single"

        def __post_init__(self):
            pass

        def finalize(self):
            self.create_attention_mask = not self.skip_getting_attention_mask_from_dataset
            super().__post_init__()

    base = side.mg.gpt_dataset.GPTDataset

    class Evo2(base):
        def __getitem__(self, idx):
            sample = super().__getitem__(idx)
            # Not in place: the mask of the peer's first sample is that of all others.
            sample["loss_mask"] = torch.where(sample["labels"] > 20, 0.0, sample["loss_mask"])
            return sample

    flags = dict.fromkeys(("reset_position_ids", "reset_attention_mask", "eod_mask_loss"), False)
    config = Config(blend=(side.prefixes, [1, 1, 1]), split="9,1,0", tokenizer=StandInTokenizer(), **flags)
    config.path_to_cache = str(side.folder)
    config.random_seed, config.sequence_length = 4, 8
    config.finalize()
    builder = side.mg.blended_megatron_dataset_builder.BlendedMegatronDatasetBuilder
    train, valid, test = builder(Evo2, [30, 5, 0], lambda: True, config).build()
    names = [field.name for field in dataclasses.fields(config) if field.name != "tokenizer"]
    held = {name: getattr(config, name) for name in names}
    computed = ("split_matrix", "mock", "token_dtype_code")
    again = Config(**{name: value for name, value in held.items() if name not in computed})
    share = torch.cat([batch["loss_mask"] for batch in batches(train)]).mean()
    names = [name for name in (*REFERENCE_FIELDS, "dataloader_type") if name in held and name != "path_to_cache"]
    return batches(train), share, len(valid), test, {name: held[name] for name in names}, again.blend


def files(side, folder=""):
    """Returns the files of a cache that both know; ours records the identity of the data beside them."""
    paths = sorted((side.folder / folder).rglob("*-*"))
    return {path.name: path.read_bytes() for path in paths if not path.name.endswith("-identity.json")}


@case
def cache_files(side):
    side.build(sizes=(100, 7, 3)), side.blend(), side.train(mock=True, cls=side.mg.gpt_dataset.MockGPTDataset)
    return files(side)


# --- both -------------------------------------------------------------------------------------------------------------


def namespace(package):
    names = {name: importlib.import_module(f"{package}.core.datasets.{name}") for name in MODULES}
    return SimpleNamespace(**names)


@pytest.fixture
def sides(tmp_path, rng, monkeypatch):
    """What both packages are given: the same corpora, and a folder for each."""
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)  # which the peer asks for a cache, ranks or none
    prefixes = []
    for name in "abc":
        # None is empty after the first six, so that no split is, of half of the documents neither: the reference waits
        # for ever for samples made of nothing.
        documents = random_documents(rng, count=6, longest=30, vocab_size=40)
        documents += random_documents(rng, count=int(rng.integers(14, 34)), longest=30, vocab_size=40, empty_share=0)
        prefixes.append(write_corpus(tmp_path / name, documents))
    packages = {"peer": namespace("megatron"), "ours": namespace("tokenloom.megatron")}
    for package in packages.values():  # 100,000 documents otherwise
        monkeypatch.setattr(package.gpt_dataset.MockGPTLowLevelDataset, "size", 300)
        monkeypatch.setattr(package.gpt_dataset.MockGPTLowLevelDataset, "max_sequence_length", 40)
    REFERENCE_FIELDS[:] = [field.name for field in dataclasses.fields(packages["peer"].gpt_dataset.GPTDatasetConfig)]

    def make(package, name):
        folder = tmp_path / package / name
        folder.mkdir(parents=True)
        return Side(packages[package], prefixes, folder)

    return make


def outcome(client, side):
    """Returns what client code returns, by what it holds, or what it raises."""
    try:
        return plain(client(side))
    except (AssertionError, TypeError, ValueError, IndexError, AttributeError) as error:
        return error


def differing(mine, theirs, where=""):
    """Yields where two outcomes differ."""
    if isinstance(mine, dict) and isinstance(theirs, dict) and mine.keys() == theirs.keys():
        for name in theirs:
            yield from differing(mine[name], theirs[name], f"{where}.{name}")
    elif isinstance(mine, list) and isinstance(theirs, list) and len(mine) == len(theirs):
        for number, (one, other) in enumerate(zip(mine, theirs, strict=True)):
            yield from differing(one, other, f"{where}[{number}]")
    elif mine != theirs:
        yield f"{where}: {str(theirs)[:300]!r} there, {str(mine)[:300]!r} here"


def test_client_code_gets_the_same_of_both(sides):
    problems = []
    for name, client in CASES.items():
        theirs, mine = (outcome(client, sides(package, name)) for package in ("peer", "ours"))
        if isinstance(theirs, Exception):
            if not isinstance(mine, type(theirs)):
                problems.append(f"{name}: {theirs!r} there, {mine!r} here")
        elif isinstance(mine, Exception):
            problems.append(f"{name}: {mine!r} here")
        else:
            problems += differing(mine, theirs, name)
    assert not problems, "\n".join(problems)


def test_kernels_fill_the_samples_of_classes_that_override_nothing(sides):
    side = sides("ours", "fills")

    class Mine(side.mg.gpt_dataset.GPTDataset):
        pass

    for cls in (side.mg.gpt_dataset.GPTDataset, Mine):
        for dataset in (side.train(cls), side.blend(cls)):
            assert fills_batches(dataset)
            assert makes_batches(dataset)
        assert dataset.datasets[0]._mapped_samples() is not None
        given = side.train(cls)
        given.shuffle_index = np.array(given.shuffle_index)[::-1].copy()
        assert fills_batches(given)
        assert given._mapped_samples() is not None
    assert not fills_batches(side.train(reversed_text(Mine)))
    assert not makes_batches(side.blend(without_loss(Mine)))
