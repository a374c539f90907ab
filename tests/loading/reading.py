"""Runs for loaders: one without data, one of sixteen tokens a sample; its loaders, and datasets with a flipped bit."""

import hashlib

import numpy as np
from tests.datasets.conversations import ANSWER, PROMPT, conversation, write_conversations
from tests.run.data import write_source
from tests.support import StandInTokenizer

from tokenloom import MegatronPretrainingSampler
from tokenloom.errors import ConfigError
from tokenloom.loading.thread_loader import ThreadLoader
from tokenloom.run.run import Run


class FakeRun:
    def __init__(self, num_samples, name="the run"):
        self.num_samples = num_samples
        self.name = name

    def __len__(self):
        return self.num_samples

    def __getitem__(self, position):
        return {"position": np.array(-1 if position is None else position)}

    def batch(self, positions):
        return {"position": np.array([-1 if position is None else position for position in positions], np.int64)}

    def order_state(self, position):
        if position > self.num_samples:
            message = f"the run ends at {self.num_samples}, before {position}"
            raise ConfigError(message)
        return {"run": self.name, "position": position, "digest": hashlib.sha256(self.name.encode()).hexdigest()}

    def position_of_state(self, state):
        assert set(state) == {"run", "position", "digest"}
        if self.order_state(state["position"]) != state:
            message = f"expected a state of {self.name}, found one of {state['run']}"
            raise ConfigError(message)
        return state["position"]


RUN = """\
order = {order}
seed = 7
[sources]
web = "web"
code = "code"
[[stages]]
sequence_length = 16
samples = {samples}
weights = {{ web = 3, code = 1 }}
{tail}
"""


def write_run(folder, *, order="1", tail="", samples=300):
    for name, lengths in (("web", range(20, 90)), ("code", range(5, 95, 3))):
        if not (folder / f"{name}.bin").exists():
            write_source(folder / name, *lengths)
    path = folder / "run.toml"
    path.write_text(RUN.format(order=order, tail=tail, samples=samples))
    return path


def dataset_of(folder, **settings):
    path = write_run(folder, **settings)
    path.with_suffix(".lock").unlink(missing_ok=True)
    return Run.open(path).dataset()


def megatron_dataset_of(folder):
    return Run.open(write_run(folder, order='"megatron"'), tokenizer=StandInTokenizer()).dataset()


def loader_of(dataset, *, rank=0, size=1, batch=4, start=0, **settings):
    sampler = MegatronPretrainingSampler(len(dataset), start, batch, rank, size)
    return ThreadLoader(dataset, sampler, **settings)


def conversations_of(folder, kind):
    """Returns a run of conversations: rows of several, or single ones."""
    random = np.random.default_rng(3)
    turns = [(random.integers(9, 50, size=random.integers(1, 9)).tolist() for _ in range(2)) for _ in range(40)]
    for name in ("web", "code"):
        write_conversations(folder / name, [conversation((PROMPT, ask), (ANSWER, answer)) for ask, answer in turns])
        turns = [([7, 8], [9] * count) for count in range(1, 12)]
    path = folder / "run.toml"
    path.write_text(RUN.format(order=f'1\ndataset = "{kind}"', tail="", samples=40))
    return Run.open(path, tokenizer=StandInTokenizer(pad=7)).dataset()


class Lying:
    """A dataset with one flipped bit at one position."""

    def __init__(self, dataset, position):
        self.dataset = dataset
        self.position = position

    def __len__(self):
        return len(self.dataset)

    def order_state(self, position):
        return self.dataset.run_order.order_state(position)

    def position_of_state(self, state):
        return self.dataset.run_order.position_of_state(state)

    def __getitem__(self, position):
        return self.dataset[position]

    def batch(self, positions):
        batch = self.dataset.batch(positions)
        batch["tokens"][[position == self.position for position in positions], 5] ^= np.int64(4)
        return batch


class OnceLying(Lying):
    """Flips the bit only when the position is read first."""

    def batch(self, positions):
        batch = super().batch(positions)
        if self.position in list(positions):
            self.position = -1
        return batch
