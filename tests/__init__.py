"""The tests of tokenloom, a folder for each room of `src/tokenloom`; CONTRIBUTING.md says which tier runs when."""
