"""What is asked of a run: which rows stood at a step, and at which steps a row stood."""
