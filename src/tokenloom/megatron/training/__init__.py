"""`megatron.training`, as far as it is about data."""
