"""Decodes documents and samples for display, and searches texts in the data of a run."""
