"""From a configuration to the train, valid and test datasets of a run."""
