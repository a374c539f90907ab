"""The modules of `megatron.training.datasets`."""
