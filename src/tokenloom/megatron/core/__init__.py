"""`megatron.core`, as far as it is about data."""
