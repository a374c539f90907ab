"""`megatron.core.datasets`."""
