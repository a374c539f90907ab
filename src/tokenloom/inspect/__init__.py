"""Decodes documents and samples for display, and searches the data of a run for texts."""
