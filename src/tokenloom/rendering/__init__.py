"""Formatting for terminals and notebooks: escaped text, tables, numbers and progress lines."""
