"""What tests of pages share: a real browser that can reach nothing but this machine."""
