"""A report on a dataset, run or job, as one HTML page."""
