"""The harness of `make bench`: rows and sides, child processes, results, tables, plot and page."""
