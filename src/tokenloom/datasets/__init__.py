"""A sample by number: configurations, the base class, and the dataset family."""
