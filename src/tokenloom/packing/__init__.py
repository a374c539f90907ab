"""Variable lengths into balanced microbatches: planning, exchanging, batches of packs."""
