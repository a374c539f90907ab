"""A report on data, a run or a job, as one page."""
