"""Answers about a run: which documents were read at a step, and at which steps a document is read."""
