"""A dataset that knows its order: sample k is its position, and a few words decide what is before a position."""

from __future__ import annotations

import hashlib

import numpy as np

from tokenloom.errors import ConfigError


class FakeRun:
    """The run of a name; `changes` maps positions to what was changed from there on."""

    def __init__(self, num_samples, name="the run", changes=None):
        self.num_samples = num_samples
        self.name = name
        self.changes = changes or {}

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
        past = [item for item in sorted(self.changes.items()) if item[0] < position]
        digest = hashlib.sha256(f"{self.name} {past}".encode()).hexdigest()
        return {"run": self.name, "position": position, "digest": digest}

    def position_of_state(self, state):
        assert set(state) == {"run", "position", "digest"}
        if state["run"] != self.name:
            message = f"expected a state of {self.name}, found one of {state['run']}"
            raise ConfigError(message)
        if self.order_state(state["position"]) != state:
            message = f"the order before position {state['position']} is another one than that of the state"
            raise ConfigError(message)
        return state["position"]
