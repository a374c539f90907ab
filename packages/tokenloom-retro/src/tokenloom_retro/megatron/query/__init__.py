"""`megatron.core.datasets.retro.query`: samples, and the neighbors of their chunks."""
