"""Runs that are stopped anywhere, changed, and gone on with on other ranks: the stream is that of the unbroken run."""

from __future__ import annotations

import pytest
from tests.run.folders import SOURCES, make_run, texts, write_pair, write_toml

from tokenloom.loading.thread_loader import ThreadLoader
from tokenloom.run.locking import lock_run
from tokenloom.run.run import Run
from tokenloom.samplers import MegatronPretrainingSampler

END = 700


def stage(number: int, samples: int, web: int, code: int) -> str:
    weights = f"weights = {{ web = {web}, code = {code} }}"
    return f'[[stages]]\nname = "{number}"\nsequence_length = 16\nsamples = {samples}\n{weights}\n'


def read(run: Run, state, *, stop: int, ranks: int, size: int, threads: int) -> tuple[list[list[int]], dict]:
    """Returns what all ranks read from a state on until they are at `stop` or beyond, and the state there."""
    found: dict[int, list[int]] = {}
    ends = []
    for rank in range(ranks):
        total = len(run.dataset())
        loader = ThreadLoader(
            run.dataset(), MegatronPretrainingSampler(total, 0, size, rank, ranks), num_threads=threads
        )
        if state is not None:
            loader.load_state_dict(state)
        first = 0 if state is None else state["position"]
        for number, batch in enumerate(loader):
            begin = first + (number * ranks + rank) * size
            for row in range(size):
                found[begin + row] = [*batch["tokens"][row].tolist(), int(batch["labels"][row, -1])]
            if first + (number + 1) * ranks * size >= stop:
                break
        ends.append(loader.state_dict())
    assert all(end == ends[0] for end in ends)
    return [found[position] for position in sorted(found)], ends[0]


@pytest.mark.parametrize(
    "attempt", [0, 1, 2, *(pytest.param(number, marks=pytest.mark.slow) for number in range(3, 8))]
)
def test_the_stream_is_that_of_the_unbroken_run(tmp_path, rng, attempt):
    stages = [stage(0, END, 3, 1)]
    run = make_run(tmp_path, "".join(stages))
    stream: list[list[int]] = []
    state, position, grown, extra = None, 0, 0, 0
    while position < END - 70:
        ranks, size, threads = (int(rng.integers(1, most)) for most in (5, 7, 4))
        stop = position + int(rng.integers(1, 200))
        part, state = read(run, state, stop=min(stop, END - 40), ranks=ranks, size=size, threads=threads)
        stream += part
        position = state["position"]
        assert len(stream) == position
        match int(rng.integers(4)):
            case 0:  # other weights from here on
                begun = sum(int(each.split("samples = ")[1].split("\n")[0]) for each in stages[:-1])
                if position > begun:
                    web, code = rng.integers(1, 9, 2).tolist()
                    head, _, rest = stages.pop().partition("samples = ")
                    stages += [f"{head}samples = {position - begun}\n{rest.partition(chr(10))[2]}"]
                    stages += [stage(len(stages), END - position, web, code)]
            case 1:  # more of a source
                grown += 1
                write_pair(tmp_path / f"web-{5 + grown}", 60, first=10**6 * grown, seed=grown)
            case 2:  # a source that no stage reads yet
                extra += 1
                write_pair(tmp_path / f"other-{extra}", 30, first=10**8 + 10**6 * extra, seed=extra)
            case _:
                continue
        others = "".join(f'other{number} = "other-{number}"\n' for number in range(1, extra + 1))
        lock_run(write_toml(tmp_path, "".join(stages), sources=SOURCES + others), consumed=position)
        run = Run.open(tmp_path / "run.toml")
    assert stream == texts(run.dataset(), range(len(stream)))
    assert run.dataset().run_order.order_state(len(stream)) == {
        name: state[name] for name in ("run", "position", "digest")
    }
