"""The data modules of `megatron.training`."""
