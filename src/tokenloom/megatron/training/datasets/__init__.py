"""`megatron.training.datasets`."""
