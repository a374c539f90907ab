"""A real browser for tests of pages, which can only reach this machine."""
