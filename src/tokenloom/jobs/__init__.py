"""Work that any number of processes share: shards, each done once by whoever is free, that can be killed anywhere."""
