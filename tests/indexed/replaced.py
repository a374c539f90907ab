import traceback

from tokenloom import IndexedDataset
from tokenloom.errors import TokenloomError

NUM_DOCUMENTS, LENGTH = 64, 64


def token_of(dataset):
    """Returns the token of a pair, having read all of it; fails if it is a mixture."""
    token = len(dataset[0]) - LENGTH
    for row in range(NUM_DOCUMENTS):
        found = dataset[row]
        assert len(found) == LENGTH + token * (-1) ** row, "the index is a mixture"
        assert (found == token).all(), f"tokens {set(found.tolist())} under the index of {token}"
    return token


def read_on(prefix, stop, begun, results, mmap):
    """Opens and reads a pair until told to stop; puts how often it could, how often it was told, and what is wrong."""
    num_read = num_told = 0
    wrong = ""
    while not stop.is_set() and not wrong:
        try:
            dataset = IndexedDataset(str(prefix), mmap=mmap)
            token = token_of(dataset)
            again = token_of(dataset)
            assert token == again
            if not num_read:
                begun.release()
            num_read += 1
        except TokenloomError:
            num_told += 1
        except BaseException:  # noqa: BLE001 - told below
            wrong = traceback.format_exc()
            begun.release()
    results.put((num_read, num_told, wrong))
