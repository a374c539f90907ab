"""The tests of tokenloom; they mirror `src/tokenloom`."""
