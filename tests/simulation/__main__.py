"""`python -m tests.simulation`: runs many seeds, or prints the trace of one."""

import argparse
import secrets
import sys

from tests.simulation.runner import SCENARIOS, run_seed, run_seeds


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--scenario", choices=[*SCENARIOS], help="default: all scenarios")
    parser.add_argument("--seed", type=int, help="run this seed and print its trace")
    parser.add_argument("--seeds", type=int, default=20_000, help="number of seeds per scenario")
    parser.add_argument("--first", type=int, help="first seed; default: random")
    parser.add_argument("--seconds", type=float, default=1e9, help="time limit per scenario")
    parser.add_argument("--most-failures", type=int, default=10, help="stop a scenario after this many failures")
    arguments = parser.parse_args()
    names = [arguments.scenario] if arguments.scenario else [*SCENARIOS]
    if arguments.seed is not None:
        if len(names) > 1:
            parser.error("--seed needs a --scenario")
        world, problem = run_seed(names[0], arguments.seed, tells=True)
        print("\n".join(world.trace or ()))
        print(problem or "all guarantees hold")
        return problem is not None
    first = secrets.randbelow(1 << 40) if arguments.first is None else arguments.first
    is_broken = False
    for name in names:
        seeds = range(first, first + arguments.seeds)
        tally = run_seeds(name, seeds, seconds=arguments.seconds, most_failures=arguments.most_failures)
        print(f"{name}: {tally}", flush=True)
        for seed, problem in tally.failures.items():
            print(f"  python -m tests.simulation --scenario {name} --seed {seed}  # {problem}")
        is_broken |= bool(tally.failures)
    return is_broken


if __name__ == "__main__":
    sys.exit(main())
