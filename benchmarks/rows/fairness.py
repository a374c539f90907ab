"""Sentences on fairness that several rows share, so that they say the same thing in the same words."""

WARM = "The page cache is warm."
PROCESSES = "Each side is a process of its own; they take turns, round by round."
NO_IMPORTS = "Imports and opening are not counted."
