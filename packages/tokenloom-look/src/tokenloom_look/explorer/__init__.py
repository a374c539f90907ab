"""A local web application that shows data, a run or a job."""
