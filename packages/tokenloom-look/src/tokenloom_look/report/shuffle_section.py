"""How well the order of a run is shuffled, source by source."""

from __future__ import annotations

from collections.abc import Sequence

from tokenloom.inspect.target import Target
from tokenloom.order.shuffle_quality import FEWEST, ShuffleMeasure, ShuffleQuality
from tokenloom.run.audit.sampled_order import SampledOrder, sampled_source
from tokenloom_look.html import Cell, Markup, element, joined, table
from tokenloom_look.report.options import ReportOptions
from tokenloom_look.report.run_pieces import horizon_of
from tokenloom_look.report.section import Chart, Section, Series
from tokenloom_look.report.thinning import spread_points

_MOST_SOURCES = 8
_MOST_CHARTS = 3
_MOST_POINTS = 800

_WORDS = (
    "Where in its data the samples of a source begin that follow each other, of stretches of its first pass. Beside "
    "each number stands what uniform permutations give: their mean and standard deviation."
)


def shuffle_section(target: Target, _options: ReportOptions) -> Section | None:
    """Returns how well a run shuffles its largest sources; None where the order is stored.

    Raises:
        DatasetNotFoundError, DatasetFormatError: data are not what was locked.
    """
    if target.run is None or target.run.lock.is_megatron:
        return None
    run = target.run
    largest = run.history([horizon_of(run).position]).largest(_MOST_SOURCES).tolist()
    found = [sampled_source(run, source, object_storage=target.object_storage) for source in largest]
    orders = [order for order in found if order is not None]
    qualities = [order.quality for order in orders]
    left_out = len(run.lock.sources) - len(orders)
    note = f"The {len(orders)} sources with the most samples; {left_out:,} are left out." if left_out else None
    return Section(
        id="shuffle",
        title="Shuffle quality",
        html=joined([element("p", _WORDS), _table(orders, qualities, note)]),
        charts=[_points(number, order) for number, order in enumerate(orders[:_MOST_CHARTS])],
        findings=[
            f"The order of {order.source}: {quality.verdict}."
            for order, quality in zip(orders, qualities, strict=True)
            if quality.num_neighbours >= FEWEST and not quality.is_uniform
        ],
    )


def _table(orders: Sequence[SampledOrder], qualities: Sequence[ShuffleQuality], note: str | None) -> Markup:
    rows: list[list[Cell]] = [
        [
            order.source,
            quality.verdict,
            _measured(quality.rank_correlation),
            _measured(quality.adjacent),
            _measured(quality.distance),
            quality.num_sampled,
        ]
        for order, quality in zip(orders, qualities, strict=True)
    ]
    columns = [
        *("source", "verdict", "rank correlation", "neighbours side by side", "mean distance of neighbours"),
        "samples looked at",
    ]
    return table(columns, rows, caption="Order of samples against order of the data", note=note)


def _measured(measure: ShuffleMeasure) -> str:
    if not measure.deviation:
        return ""
    return f"{measure.value:.3g}, uniform {measure.expected:.3g} ± {measure.deviation:.2g}"


def _points(number: int, order: SampledOrder) -> Chart:
    kept = spread_points(len(order.positions), most=_MOST_POINTS)
    return Chart(
        id=f"shuffle-{number}",
        kind="points",
        title=f"Order of {order.source}",
        summary=f"Place in the order against place in the data: {order.quality.verdict}.",
        x_label="sample of the first pass",
        x=order.positions[kept],
        y_label="place in the data",
        y_format="share",
        series=[Series(order.source, order.items[kept] / order.num_items)],
        note=f"{len(kept):,} samples of stretches of it. An even cloud is a good shuffle; lines are none.",
    )
