"""A whole corpus into datasets: a job of shards that any number of processes share, and that can be killed anywhere."""
