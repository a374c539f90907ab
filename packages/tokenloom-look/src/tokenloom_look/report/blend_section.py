"""The section "Blend": the number of samples that a blend takes from each dataset, and of passes over each dataset."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tokenloom.blending.build_plan import BuildPlan, DatasetPlan, plan_build
from tokenloom.datasets.config import BlendedMegatronDatasetConfig
from tokenloom_look.html import Cell, Markup, element, joined, table
from tokenloom_look.report.run_pieces import NUM_COLOURS, largest_rows
from tokenloom_look.report.section import Chart, ReportOptions, Section, Series, share
from tokenloom_look.target import Target

_MOST_SAMPLES = 1 << 22  # maximum number of samples to count; counting takes up to 0.1 us per sample
_MOST_LINES = 12
_MANY_PASSES = 4


def blend_section(target: Target, _options: ReportOptions) -> Section | None:
    """Returns the section; None without a blend. Assumes that training reads as many tokens as the datasets contain."""
    if target.run is not None or target.blend is None or len(target.sources) < 2:
        return None
    prefixes, weights = target.blend
    length = target.settings.sequence_length
    whole = max(1, sum(source.num_tokens for source in target.sources) // length)
    counted = min(whole, _MOST_SAMPLES)
    config = BlendedMegatronDatasetConfig(
        random_seed=target.settings.seed,
        sequence_length=length,
        blend=(list(prefixes), weights),
        split="1,0,0",
        object_storage=target.object_storage,
    )
    policy = target.settings.window_policy
    plan = plan_build(config, [counted if weights is not None else None, None, None], policy=policy)
    datasets = plan.splits[0].datasets if plan.splits and plan.splits[0] is not None else ()
    scale = whole / counted if weights is not None else 1.0
    words = (
        f"Training over {whole:,} samples of {length:,} tokens; all tokens together fill as many samples."
        if weights is not None
        else f"Without weights each dataset is read once, in samples of {length:,} tokens."
    )
    if scale > 1:
        words += f" Counted for {counted:,} samples and scaled up."
    return Section(
        id="blend",
        title="Blend",
        html=joined([element("p", words), _table(datasets, scale)]),
        charts=[_chart(datasets, whole, scale)] if weights is not None else [],
        findings=list(_findings(datasets, plan, scale)),
    )


def _table(datasets: Sequence[DatasetPlan], scale: float) -> Markup:
    def cells(rows: Sequence[DatasetPlan]) -> list[Cell]:
        owed = round(scale * sum(row.num_samples_owed for row in rows))
        return [sum(row.num_tokens for row in rows), share(sum(row.share for row in rows), 1), owed]

    rows = largest_rows(
        datasets,
        lambda row: row.share,
        lambda row: [row.name, *cells([row]), f"{scale * row.num_epochs_owed:,.2f}"],
        lambda rest: [*cells(rest), None],
    )
    return table(["dataset", "tokens", "share of the samples", "samples", "passes"], rows, caption="Samples by dataset")


def _chart(datasets: Sequence[DatasetPlan], whole: int, scale: float) -> Chart:
    ranked = sorted(datasets, key=lambda row: -row.num_epochs_owed)
    drawn = ranked[:_MOST_LINES]
    colours = {row.name: number for number, row in enumerate(datasets)} if len(datasets) <= NUM_COLOURS else {}
    ends = [f"{row.name} {scale * row.num_epochs_owed:,.2f}" for row in drawn[:3]]
    return Chart(
        id="blend-passes",
        kind="lines",
        title="Passes over the datasets",
        summary=f"Passes after {whole:,} samples, most often read datasets first: {', '.join(ends)}.",
        x_label="samples",
        x=[0, whole],
        y_label="passes",
        series=[Series(row.name, [0.0, scale * row.num_epochs_owed], colour=colours.get(row.name)) for row in drawn],
        note=f"The {len(drawn)} datasets read most often." if len(ranked) > len(drawn) else "",
    )


def _findings(datasets: Sequence[DatasetPlan], plan: BuildPlan, scale: float) -> Iterator[str]:
    often = sorted(datasets, key=lambda row: -row.num_epochs_owed)[:5]
    for row in often:
        if scale * row.num_epochs_owed > _MANY_PASSES:
            passes = scale * row.num_epochs_owed
            yield f"{row.name} is read {passes:,.1f} times if training reads as many tokens as all datasets have."
    for problem in plan.problems[:5]:
        yield f"{problem.name} has too few samples; the blend needs {problem.owed:,} samples of it: {problem.remedy}"
