"""Whose turn it is, and when: samplers, and the loader that turns positions into batches."""
