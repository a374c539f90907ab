"""`megatron.core.datasets.retro.db`: the database of chunks."""
