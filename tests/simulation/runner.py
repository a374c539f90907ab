"""Runs seeds of scenarios."""

import gc
import logging
import time
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.simulation import cache, job, publish, ranks
from tests.simulation.scheduler import FailedError, World

SCENARIOS = {"publish": publish.run, "cache": cache.run, "job": job.run, "ranks": ranks.run}

_COLLECT_EVERY = 500


@dataclass
class Tally:
    num_runs: int = 0
    num_steps: int = 0
    num_crashes: int = 0
    num_errors: int = 0
    seconds: float = 0.0
    failures: dict[int, str] = field(default_factory=dict)  # problem by seed

    def __str__(self) -> str:
        rate = self.num_runs / max(self.seconds, 1e-9) * 60
        return (
            f"{self.num_runs} seeds in {self.seconds:.1f} s ({rate:,.0f} a minute), {self.num_steps} system calls, "
            f"{self.num_crashes} crashes, {self.num_errors} errors: {len(self.failures)} failed"
        )


def run_seed(scenario: str, seed: int, *, tells: bool = False) -> tuple[World, str | None]:
    world = World(f"{scenario} {seed}", tells=tells)
    try:
        SCENARIOS[scenario](world)
    except FailedError as error:
        return world, str(error)
    return world, None


def run_seeds(scenario: str, seeds: Iterable[int], *, seconds: float = 1e9, most_failures: int = 1_000_000) -> Tally:
    tally = Tally()
    started = time.monotonic()
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    gc.collect()
    gc.freeze()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for seed in seeds:
                world, problem = run_seed(scenario, seed)
                tally.num_runs += 1
                tally.num_steps += world.num_steps
                tally.num_crashes += world.num_crashes
                tally.num_errors += world.num_errors
                if problem is not None:
                    tally.failures[seed] = problem
                if tally.num_runs % _COLLECT_EVERY == 0:
                    gc.collect()
                if time.monotonic() - started > seconds or len(tally.failures) >= most_failures:
                    break
    finally:
        logging.disable(disabled)
        gc.unfreeze()
        tally.seconds = time.monotonic() - started
    return tally
