"""Plans of one global batch: the time of planning, and the time that ranks wait for the slowest rank."""

from __future__ import annotations

from harness.row import LIMIT, OURS, Row, Scale, Side

from rows.fairness import NO_IMPORTS, PROCESSES

PEER = "megatron-core"
LENGTHS = "lengths drawn alike; attention work, cp x dp ranks in groups of any size"
FAIRNESS = (
    "Same lengths, ranks, tokens per rank and costs; each side ends with lists of sub-samples by step and rank. Plans "
    "differ on purpose. The peer does not pack: a rank passes its sub-samples one by one, and what it gets in a step "
    "may exceed what it can hold, so that balance is easier to have. `default_dynamic_cp`, of tokenloom, makes the "
    f"plans of the peer's development branch, which packs. {NO_IMPORTS} {PROCESSES} No files."
)


def plan_rows(shape: str, num_ranks: int, count: int, rounds: int) -> list[Row]:
    """Returns two rows of one batch: seconds, and the critical path."""

    def sides(*, is_timed: bool) -> tuple[Side, ...]:
        batch = {"shape": shape, "ranks": num_ranks, "count": count, "is_timed": is_timed}
        return tuple(
            Side(name=name, library=library, script="plan_packs.py", arguments={"scheduler": scheduler, **batch})
            for name, library, scheduler in (
                ("hybrid_cost_balanced", OURS, "hybrid_cost_balanced"),
                ("default_dynamic_cp", OURS, "default_dynamic_cp"),
                ("megatron BalancedCPScheduler", PEER, "reference"),
                ("even share", LIMIT, "even"),
            )
        )

    batch = f"{num_ranks} ranks, {count:,} sub-samples, {shape}"
    shared = {"job": "packing", "fairness": FAIRNESS, "rounds": rounds, "prepare": lambda folder: None}
    return [
        Row(
            name=f"planning packs, {batch}",
            compares=f"the plan of one global batch; {LENGTHS}",
            limit="sorting the lengths",
            quantity="seconds",
            sides=sides(is_timed=True),
            **shared,
        ),
        Row(
            name=f"critical path of packs, {batch}",
            compares="what the slowest ranks of all steps cost together, over the mean of all ranks; less is better",
            limit="all ranks equally busy in every step",
            unit="of the mean",
            quantity="ratio",
            sides=sides(is_timed=False),
            **shared,
        ),
    ]


ROLLOUTS = {
    "4 prompts of 384 tokens, 4 answers each": (4, 4, 384, 32, 128),
    "1 prompt of 512 tokens, 16 answers": (1, 16, 512, 32, 128),
    "8 pairs of answers, prompts of 256 tokens": (8, 2, 256, 32, 128),
}
"""Prompts, answers of each, tokens of a prompt, least and most of an answer."""


def step_row(name: str, rounds: int) -> Row:
    """Returns the row of one training step over rollouts."""
    ways = {"pack_prefixes": OURS, "one padded batch": "torch", "one by one": "torch", "the tokens that differ": LIMIT}
    arguments = [{"way": way, "shape": ROLLOUTS[name]} for way in ("trees", "padded", "alone", "floor")]
    return Row(
        job="packing",
        name=f"a step over {name}",
        compares="forward and backward of a transformer of four layers, float32, one core; tokens of all rollouts",
        fairness="Same model, same rollouts, same loss to four digits, which is checked. Planning and the dense mask "
        f"of packs of 1,024 tokens are counted. {NO_IMPORTS} {PROCESSES}",
        limit="as many tokens as differ, as plain sequences of 1,024",
        unit="tokens",
        rounds=rounds,
        sides=tuple(
            Side(name=side, library=library, script="step_rollouts.py", arguments=each)
            for (side, library), each in zip(ways.items(), arguments, strict=True)
        ),
        same=tuple(ways)[:3],
        prepare=lambda folder: None,
    )


def rows(scale: Scale) -> list[Row]:
    """Returns the rows of a mode."""
    plans = [row for batch in scale.packings for row in plan_rows(*batch, scale.rounds)]
    return plans + [step_row(name, scale.rounds) for name in ROLLOUTS]
