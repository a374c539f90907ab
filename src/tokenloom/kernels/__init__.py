"""Kernels of `_native` whose arguments are converted or checked first; those that need neither are imported from there.

All that compute release the GIL meanwhile. Arrays are C-contiguous; a wrong dtype or shape is our own bug and shows
as a `TypeError` or `ValueError` of the extension.
"""
