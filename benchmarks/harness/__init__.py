"""What the rows of `make bench` share: rows and sides as values, children in turns, results, table, plot and page."""
