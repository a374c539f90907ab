"""A run without data: sample k is its position."""

from __future__ import annotations

import hashlib

import numpy as np

from tokenloom.errors import ConfigError


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
