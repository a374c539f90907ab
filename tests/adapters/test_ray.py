"""Ray Data over documents and samples."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.adapters.frameworks import samples_of
from tests.adapters.libraries import MUST_BE_THERE, library
from tests.indexed.pairs import write_pair

from tokenloom.adapters import document_batches, ray_documents, ray_samples
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


def test_samples_are_those_of_batch(tmp_path: Path, rng: np.random.Generator, ray: Any):
    dataset = samples_of(tmp_path, rng)
    rows = ray_samples(dataset, num_blocks=3).materialize()
    found = list(rows.iter_batches(batch_format="numpy"))
    joined = {name: np.concatenate([batch[name] for batch in found]) for name in found[0]}
    in_order = np.argsort(joined["sample"])  # tasks end when they end
    joined = {name: array[in_order] for name, array in joined.items()}
    assert joined["sample"].tolist() == list(range(len(dataset)))
    batch = dataset.batch(range(len(dataset)))
    assert np.array_equal(joined["input_ids"], batch["tokens"])
    for name in ("labels", "loss_mask", "position_ids"):
        assert np.array_equal(joined[name], batch[name])
    assert joined["input_ids"].dtype == np.int32
    kinds = {field.name: str(field.type) for block in blocks_of(ray, rows) for field in block.schema}
    assert kinds.pop("sample") == "int64"
    assert sorted(kinds) == ["input_ids", "labels", "loss_mask", "position_ids"]
    assert all("Tensor" in kind for kind in kinds.values()), kinds


def test_documents_are_arrow(tmp_path: Path, ray: Any):
    prefix = write_pair(tmp_path / "a", [[list(range(number))] for number in range(40)], dtype=np.uint16)
    rows = ray_documents(prefix, tokenizer="null:1000", num_blocks=4).materialize()
    table = pa.concat_tables(blocks_of(ray, rows)).sort_by("document")
    expected = document_batches(prefix, tokenizer="null:1000").read_all()
    assert table.schema.field("tokens").type == pa.list_(pa.uint16())
    assert table.to_pydict() == expected.to_pydict()


def test_nothing_to_read_is_an_error(tmp_path: Path, rng: np.random.Generator):
    with pytest.raises(ConfigError, match="no documents to read"):
        ray_documents(write_pair(tmp_path / "a", []))
    with pytest.raises(ConfigError, match="no samples to read"):
        ray_samples(samples_of(tmp_path, rng), num_samples=0)
