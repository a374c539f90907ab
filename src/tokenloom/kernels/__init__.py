"""Wrappers of `_native` kernels that convert or validate arguments. Import other kernels from `_native` directly.

Kernels release the GIL while they compute. Arrays must be C-contiguous; the extension raises `TypeError` or
`ValueError` for a wrong dtype or shape. Such an error is a bug in tokenloom, not in a user's code.
"""
