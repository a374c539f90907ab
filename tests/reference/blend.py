"""The order of a blend, one step at a time: the readable twin of the kernel."""

from collections.abc import Sequence


def blending_indices(
    weights: Sequence[float], size: int, sizes: Sequence[int] | None = None
) -> tuple[list[int], list[int]]:
    """Returns which dataset gives each sample, and how many it gave before.

    The next sample is of the dataset that lags most behind its share; of the lowest number among equals.

    Args:
        weights: adding up to 1.
        size: samples in all.
        sizes: what each dataset gives at most.
    """
    counts = [0] * len(weights)
    chosen, samples = [], []
    for step in range(size):
        best, largest = -1, float("-inf")
        for number, weight in enumerate(weights):
            if sizes is not None and counts[number] == sizes[number]:
                continue
            error = weight * max(step, 1) - counts[number]
            if error > largest:
                best, largest = number, error
        chosen.append(best)
        samples.append(counts[best])
        counts[best] += 1
    return chosen, samples
