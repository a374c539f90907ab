"""What a notebook shows of a dataset: one split of a pair, as samples."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tokenloom.datasets.protocols import pair_of
from tokenloom.indexed.card import pair_facts
from tokenloom.rendering.card import Fact, card, known_facts
from tokenloom.rendering.html import Markup

if TYPE_CHECKING:
    from tokenloom.datasets.base import MegatronDataset


def dataset_card(dataset: MegatronDataset, samples: Iterable[Fact]) -> Markup:
    """Returns the card of a dataset.

    Args:
        dataset: what to show.
        samples: what it knows of its samples.
    """
    config = dataset.config
    known: list[Fact] = [
        ("split", dataset.index_split.name),
        *samples,
        ("sequence length", lambda: config.sequence_length),
        ("seed", lambda: config.random_seed),
        ("data", None if dataset.dataset_path is not None else "made up"),
    ]
    pair = pair_of(dataset.dataset)
    name = dataset.dataset_path
    if pair is None:
        return card(type(dataset).__name__, known, name=name)
    return card(type(dataset).__name__, known, name=name, tables=[known_facts(pair_facts(pair), caption="its pair")])
