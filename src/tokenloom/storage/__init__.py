"""Where bytes are: local files read by mapping or by position, and files that appear atomically."""
