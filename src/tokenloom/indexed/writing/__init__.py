"""Writing of datasets: builder, concatenation and publication."""
