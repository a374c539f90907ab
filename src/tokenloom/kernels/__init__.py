"""Wrappers that convert or validate arguments of `_native` kernels. Import other kernels from `_native` itself.

Kernels release the GIL while they compute. Arrays must be C-contiguous; the extension raises `TypeError` or
`ValueError` for a wrong dtype or shape, which is a bug of the caller within tokenloom.
"""
