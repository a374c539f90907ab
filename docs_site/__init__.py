"""Pages of the documentation that follow from the code, and all of them gathered for the site."""
