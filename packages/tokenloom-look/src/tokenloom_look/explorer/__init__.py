"""A local web application to explore a dataset, run or job."""
