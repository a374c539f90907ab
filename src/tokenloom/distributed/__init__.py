"""Ranks of `torch.distributed` as values: building together, failing together, comparing."""
