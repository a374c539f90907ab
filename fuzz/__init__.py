"""Coverage-guided tests of everything that reads bytes which somebody else may have written. See CONTRIBUTING.md."""
