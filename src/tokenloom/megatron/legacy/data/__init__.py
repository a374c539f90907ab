"""`megatron.legacy.data`."""
