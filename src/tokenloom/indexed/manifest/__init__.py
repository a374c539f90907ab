"""What a dataset was made of, in the file beside it."""
