"""Which tokens are sample i: epochs, windows, shuffles, and the cache of the indices that say so."""
