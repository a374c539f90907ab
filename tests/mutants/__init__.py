"""Mutation testing: plants small faults in the rooms of level 1, and counts those that the tests catch."""
