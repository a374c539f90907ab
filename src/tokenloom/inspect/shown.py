"""What a token is shown as."""
