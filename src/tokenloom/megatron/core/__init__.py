"""The data modules of `megatron.core`."""
