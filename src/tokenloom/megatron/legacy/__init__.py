"""`megatron.legacy`, as far as it is about data."""
