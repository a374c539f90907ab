"""Datasets as they are written: built, joined, and made to appear with all their files."""
