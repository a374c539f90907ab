"""Ray Data over documents and samples; Ray Train: the workers of a real run share the samples, and resume."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.adapters.frameworks import (
    MUST_BE_THERE,
    SEQUENCE_LENGTH,
    expected_tokens,
    in_turns,
    library,
    samples_of,
    tokens_of,
)
from tests.indexed.pairs import write_pair
from tests.support import StandInTokenizer, make_dataset

from tokenloom.adapters import document_batches, ray_documents, ray_samples, ray_train_loader
from tokenloom.errors import ConfigError

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    if not MUST_BE_THERE:
        pytest.skip("starting ray takes ten seconds and more: `make adapters` does")
    ray = library("ray")
    library("ray.data")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
    yield ray
    ray.shutdown()


def blocks_of(ray: Any, rows: Any) -> list[pa.Table]:
    return [block for block in ray.get(rows.to_arrow_refs()) if block.num_rows]


def test_samples(tmp_path: Path, rng: np.random.Generator, ray: Any):
    dataset = samples_of(tmp_path, rng)
    rows = ray_samples(dataset, num_blocks=3).materialize()
    found = list(rows.iter_batches(batch_format="numpy"))
    joined = {name: np.concatenate([batch[name] for batch in found]) for name in found[0]}
    in_order = np.argsort(joined["sample"])  # tasks end in any order
    joined = {name: array[in_order] for name, array in joined.items()}
    assert joined["sample"].tolist() == list(range(len(dataset)))
    batch = dataset.batch(range(len(dataset)))
    for name in ("tokens", "labels", "loss_mask", "position_ids"):
        assert np.array_equal(joined["input_ids" if name == "tokens" else name], batch[name])
    kinds = {field.name: str(field.type) for block in blocks_of(ray, rows) for field in block.schema}
    assert kinds.pop("sample") == "int64"
    assert all("Tensor" in kind for kind in kinds.values()), kinds


def test_documents(tmp_path: Path, ray: Any):
    prefix = write_pair(tmp_path / "a", [[list(range(number))] for number in range(40)], dtype=np.uint16)
    rows = ray_documents(prefix, tokenizer="null:1000", num_blocks=4).materialize()
    table = pa.concat_tables(blocks_of(ray, rows)).sort_by("document")
    expected = document_batches(prefix, tokenizer="null:1000").read_all()
    assert table.schema.field("tokens").type == pa.list_(pa.uint16())
    assert table.to_pydict() == expected.to_pydict()

    with pytest.raises(ConfigError, match="no documents to read"):
        ray_documents(write_pair(tmp_path / "b", []))


def read(settings):
    """Reads three batches in a worker, and two more with a loader that resumes."""
    given = {"sequence_length": SEQUENCE_LENGTH, "tokenizer": StandInTokenizer(pad=0)}
    dataset = make_dataset(settings["prefix"], num_samples=40, **given)
    first, resumed = ray_train_loader(dataset, batch_size=4), ray_train_loader(dataset, batch_size=4)
    batches = iter(first)
    tokens = tokens_of(next(batches) for _ in range(3))
    resumed.load_state_dict(first.state_dict())
    later = iter(resumed)
    tokens += tokens_of(next(later) for _ in range(2))
    context = library("ray.train").get_context()
    result = {"tokens": tokens, "state": first.state_dict(), "size": context.get_world_size()}
    with open(f"{settings['folder']}/{context.get_world_rank()}.json", "w") as file:
        json.dump(result, file)


def test_workers_share_the_samples_and_resume(tmp_path, rng, ray):
    train = library("ray.train")
    whole = expected_tokens(samples_of(tmp_path, rng))
    trainer = library("ray.train.torch").TorchTrainer(
        read,
        train_loop_config={"folder": str(tmp_path), "prefix": str(tmp_path / "corpus")},
        scaling_config=train.ScalingConfig(num_workers=2),
        run_config=train.RunConfig(storage_path=str(tmp_path), name="run"),
    )
    trainer.fit()
    results = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert [result["size"] for result in results] == [2, 2]
    assert results[0]["state"] == results[1]["state"]
    assert in_turns([result["tokens"] for result in results]) == whole[:10]
