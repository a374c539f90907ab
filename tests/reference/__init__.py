"""Slow, readable twins of the native kernels: what they must compute, one step at a time."""
