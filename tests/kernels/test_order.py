"""The kernels of orders, compared with their readable references."""

import hashlib

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.reference import permutation as twin
from tests.reference import shuffle, windows
from tests.reference.level_packing import LevelPacking

from tokenloom.kernels.order import LegacyRandom, build_sample_index
from tokenloom.kernels.packs import pack_to_levels
from tokenloom.kernels.permutation import Key, Permutation, Purpose, derive
from tokenloom.kernels.samples import gather_spans

SHUFFLED_DTYPES = [np.int32, np.uint32, np.int64]
SHUFFLED_SIZES = [0, 1, 2, 3, 4, 5, 7, 8, 9, 255, 256, 257, 511, 512, 513, 1023, 1024, 1025, 65535, 65536, 65537]


@given(
    seed=st.integers(0, 2**32 - 1) | st.sampled_from([0, 2**31, 2**32 - 1]),
    calls=st.lists(st.tuples(st.integers(0, 3000), st.sampled_from(SHUFFLED_DTYPES)), max_size=6),
)
@example(seed=57, calls=[(size, dtype) for size in SHUFFLED_SIZES for dtype in SHUFFLED_DTYPES])
def test_several_shuffles_of_one_generator_equal_numpy(seed, calls):
    random, reference = LegacyRandom(seed), np.random.RandomState(seed)
    for size, dtype in calls:
        ours, theirs = np.arange(size, dtype=dtype), np.arange(size, dtype=dtype)
        random.shuffle(ours)
        reference.shuffle(theirs)
        assert np.array_equal(ours, theirs)


def sample_index(lengths, document_index, **settings):
    arrays = (np.array(values, dtype=np.int32) for values in (lengths, document_index))
    return build_sample_index(*arrays, dtype=np.int32, **settings)


def test_a_long_sample_index_equals_its_twin(rng):
    lengths = rng.integers(0, 30, size=5000)
    document_index = rng.integers(0, 5000, size=20_000)  # several blocks of the kernel
    settings = {"window_length": 17, "extra": 1, "num_windows": int(lengths[document_index].sum() - 1) // 17}
    index = sample_index(lengths, document_index, **settings)
    expected = windows.build_sample_index(lengths.tolist(), document_index.tolist(), **settings)
    assert index.tolist() == [list(row) for row in expected]


def shuffle_windows(random, lengths, parts, *, documents=np.int32, dtype=np.int32, num_windows=None, **settings):
    """Shuffles the documents of every part; returns the stream and its windows."""
    stream = np.concatenate([np.array(part, dtype=documents) for part in parts])
    counts = np.array([[len(part), int(lengths[part].sum())] for part in parts], dtype=np.int64)
    if num_windows is None:
        num_windows = max(0, int(counts[:, 1].sum()) - settings["extra"]) // settings["window_length"]
    windows = random.shuffle_windows(
        stream, lengths, parts=counts, dtype=np.dtype(dtype), num_windows=num_windows, **settings
    )
    return stream, windows


LENGTHS = st.lists(st.integers(0, 12) | st.just(0), min_size=1, max_size=12)
REPEATS = st.lists(st.integers(0, 4), min_size=1, max_size=3)
SHAPES = st.tuples(st.integers(1, 15), st.integers(0, 1), st.booleans())
WIDTHS = st.sampled_from([np.int32, np.int64])


@given(st.integers(0, 2**32 - 1), LENGTHS, REPEATS, SHAPES, WIDTHS, WIDTHS)
def test_shuffling_with_windows_equals_one_after_the_other(seed, lengths, repeats, shape, dtype, documents):
    window_length, extra, keep_partial = shape
    lengths = np.array(lengths, dtype=np.int32)
    parts = [np.tile(np.arange(len(lengths)), times) for times in repeats]
    num_tokens = max(0, sum(repeats) * int(lengths.sum()) - extra)
    settings = {"window_length": window_length, "extra": extra}
    settings["num_windows"] = -(-num_tokens // window_length) if keep_partial else num_tokens // window_length
    random, reference = LegacyRandom(seed), np.random.RandomState(seed)
    stream, index = shuffle_windows(random, lengths, parts, documents=documents, dtype=dtype, **settings)
    for part in parts:
        shuffle.legacy_shuffle(part, reference)
    expected = np.concatenate(parts)
    assert stream.tolist() == expected.tolist()
    assert index.dtype == dtype
    assert index.tolist() == [list(row) for row in windows.build_sample_index(lengths, expected, **settings)]
    rest = np.arange(50)
    random.shuffle(rest)
    assert rest.tolist() == reference.permutation(50).tolist()  # the generator is in the same state


@pytest.mark.parametrize("extra", [0, 1])
def test_a_thread_finds_the_windows_of_a_long_stream(seed, rng, extra):
    lengths = rng.integers(0, 30, size=200_000, dtype=np.int32)  # many blocks, enough for a thread
    parts = [np.tile(np.arange(len(lengths)), 2), np.arange(len(lengths))]
    stream, index = shuffle_windows(LegacyRandom(seed), lengths, parts, window_length=17, extra=extra)
    reference = np.random.RandomState(seed)
    for part in parts:
        reference.shuffle(part)
    assert np.array_equal(stream, np.concatenate(parts))
    settings = {"window_length": 17, "extra": extra, "num_windows": len(index) - 1}
    assert np.array_equal(index, sample_index(lengths, stream, **settings))


@pytest.mark.parametrize("size", [5, 200_000])
@pytest.mark.parametrize(
    ("first", "missing", "tokens", "num_windows", "message"),
    [
        (0, 0, 7, 1, "expected documents 0 to {size} of the stream to hold 7 tokens, found {tokens}"),
        (1, 0, None, 1, "document index holds sequence {size}, but there are {size}"),
        (0, 0, None, None, "the documents hold {tokens} tokens, too few for {size} windows"),
        (0, 1, 7, 1, "parts must make up the stream"),
    ],
)
def test_a_stream_of_other_lengths_than_said_is_refused(size, first, missing, tokens, num_windows, message):
    lengths, stream = np.full(size, 3, dtype=np.int32), np.arange(first, first + size)
    parts = np.array([[size - missing, 3 * size if tokens is None else tokens]])
    settings = {"window_length": 4, "extra": 1, "num_windows": num_windows or size, "dtype": np.dtype(np.int32)}
    with pytest.raises((IndexError, ValueError), match=message.format(size=size, tokens=3 * size)):
        LegacyRandom(0).shuffle_windows(stream, lengths, parts=parts, **settings)


@pytest.mark.parametrize(
    ("lengths", "documents", "num_windows", "message"),
    [
        *(([3, 3], [0, wrong], 1, f"document index holds sequence {wrong}, but") for wrong in (2, -1, 2**31 - 1)),
        ([3, 3], [0, 1], 3, "the documents hold 6 tokens, too few for 3 windows"),
        ([], [], 1, "the documents hold 0 tokens, too few for 1 windows"),
    ],
)
def test_wrong_streams_are_refused(lengths, documents, num_windows, message):
    with pytest.raises(IndexError, match=message):
        sample_index(lengths, documents, window_length=4, extra=0, num_windows=num_windows)
    assert sample_index([], [], window_length=4, extra=1, num_windows=0).tolist() == [[0, 0]]


# --- keys and permutations of the computed order: recorded values, the reference, and tests of randomness -----------
WORDS = st.integers(0, 2**64 - 1)
KEYS = st.builds(Key, WORDS, WORDS)
SIZES = st.one_of(st.integers(1, 3000), st.integers(1, 2**60), st.sampled_from([1024, 1025, 65535, 65536, 2**60]))
KEY = Key(0x0123456789ABCDEF, 0xFEDCBA9876543210)


def integers(values):
    return np.array(values, dtype=np.int64)


def forward(n, key, places=None):
    return Permutation(n, key).forward(integers(np.arange(n) if places is None else places))


def digest(values):
    return hashlib.sha256(values.astype("<i8").tobytes()).hexdigest()[:32]


def test_golden_permutations_and_keys():
    assert forward(0, KEY).tolist() == []
    assert forward(1, KEY).tolist() == [0]
    assert forward(10, KEY).tolist() == [0, 3, 2, 8, 5, 9, 7, 1, 4, 6]
    assert forward(1025, KEY, range(8)).tolist() == [438, 173, 244, 790, 687, 909, 455, 540]
    assert forward(65536, KEY, range(6)).tolist() == [65385, 15644, 31310, 53608, 42047, 35489]
    largest = [496617124778840235, 484990898281189734, 993905031587559202]
    assert forward(2**60, KEY, [0, 1, 2**60 - 1]).tolist() == largest
    assert derive(Key(0, 0), 0, 0) == Key(0x3EB6011B1349705B, 0xB6C40F83D22B9FD9)
    assert derive(KEY, Purpose.WINDOWS, 7) == Key(0x1D8044AAC83FE10F, 0xD5068400CAD24602)
    assert derive(KEY, Purpose.SAMPLES, 2**64 - 1) == Key(0xB893722BF8A07466, 0xB163B6C23ED85A87)
    places = np.arange(10_000, dtype=np.int64) * 2**46
    assert digest(forward(2**60 - 1, KEY, places)) == "f46ae02231d8b0bdac786496bb04a756"


@pytest.mark.parametrize(
    ("n", "expected"),
    [
        (2, "9d34149fbd1fe777eb238799054c8cbf"),
        (100, "a9c98c2d6e0196722dbff4b40c06be19"),
        (1024, "2f70938ed973953f9de9e489e85ee37b"),
        (1025, "dfb4b2c5011382c8304961b07a4252c1"),
        (65535, "8c6ae9144a594acbfe86ad84994a7b59"),
        (65536, "8654e18003e5955d19f91e7c8873327b"),
        (1_000_003, "cbc22ac4dec624d81726bc411355b446"),
    ],
)
def test_golden_digests(n, expected):
    assert digest(forward(n, KEY)) == expected


@pytest.mark.parametrize("number", [23289, 54604])  # one table in 16,000 has this case
def test_a_draw_that_would_favour_some_partners_is_drawn_again(number):
    key = derive(KEY, Purpose.MIXING, number)
    assert forward(1024, key).tolist() == twin.fisher_yates(key, 1024)


@given(key=KEYS, purpose=st.integers(0, 2**64 - 1), number=WORDS)
def test_derived_keys_equal_the_twin(key, purpose, number):
    assert derive(key, purpose, number) == twin.derive(key, purpose, number)


@given(n=SIZES, key=KEYS, seed=st.integers(0, 2**32 - 1))
@example(n=1, key=KEY, seed=0)
@example(n=1024, key=KEY, seed=0)
@example(n=1025, key=KEY, seed=0)
def test_permutations_equal_the_twin(n, key, seed):
    places = np.random.default_rng(seed).integers(0, n, size=150)  # full SIMD groups and a remainder
    ours, other = Permutation(n, key), twin.Permutation(n, key)
    assert len(ours) == n
    assert ours.forward(places).tolist() == [other.forward(place) for place in places.tolist()]
    assert ours.inverse(places).tolist() == [other.inverse(place) for place in places.tolist()]


@pytest.mark.parametrize(
    "n", [*range(1, 40), *range(40, 2200, 27), *range(2200, 70_000, 1_999), 1024, 1025, 65535, 65536]
)
def test_every_thing_has_one_place(n, seed):
    permutation = Permutation(n, Key(seed, n))
    things = permutation.forward(np.arange(n))
    np.testing.assert_array_equal(np.sort(things), np.arange(n))
    np.testing.assert_array_equal(permutation.inverse(things), np.arange(n))


@pytest.mark.parametrize("exponent", range(11, 61))
def test_places_are_found_again_around_powers_of_two(exponent, rng):
    for n in {2**exponent - 1, 2**exponent, min(2**exponent + 1, 2**60)}:
        permutation = Permutation(n, Key(exponent, n))
        places = np.concatenate([rng.integers(0, n, size=2000), [0, n - 1]])
        things = permutation.forward(places)
        assert things.min() >= 0
        assert things.max() < n
        np.testing.assert_array_equal(permutation.inverse(things), places)
        np.testing.assert_array_equal(permutation.forward(permutation.inverse(places)), places)


# --- packs to levels ------------------------------------------------------------------------------------------------
def pack(lengths, costs, **task):
    task = {"most_items": len(lengths), **task}
    arrays = {name: np.array(task.pop(name), dtype=np.int64) for name in ("widths", "levels", "bases")}
    found = pack_to_levels(np.array(lengths, dtype=np.int64), np.array(costs, dtype=np.int64), **arrays, **task)
    return None if found is None else found.tolist()


def squares(lengths):
    return [length * length for length in lengths]


def uniform(num_steps, width, **task):
    nothing = [0] * num_steps
    return {"widths": [width] * num_steps, "levels": nothing, "bases": nothing, "num_ranks": width, **task}


def test_literal_packs():
    task = uniform(1, 2, capacity=10, by_length=False)
    assert pack([4, 3, 2, 1], squares([4, 3, 2, 1]), **task) == [0, 1, 1, 1]
    assert pack([5, 5], squares([5, 5]), **task) == [0, 1]
    assert pack([9, 8, 7], squares([9, 8, 7]), **task) is None
    lengths = [8, 8, 4, 4, 4, 4]  # a costly one takes the costliest others into its step
    assert pack(lengths, squares(lengths), **uniform(2, 2, capacity=8, by_length=False)) == [0, 1, 2, 2, 3, 3]
    lengths = [9] * 4 + [1] * 12  # four long items for two steps of three: two per step, instead of 3 and 1
    found = pack(lengths, squares(lengths), **uniform(2, 3, capacity=10, by_length=False))
    assert sorted(number // 3 for number in found[:4]) == [0, 0, 1, 1]
    # 6 + 4, 6 + 4 and 5 + 5 leave no room at all.
    lengths = [6, 6, 5, 5, 4, 4]
    assert pack(lengths, squares(lengths), **uniform(1, 3, capacity=10, by_length=True)) == [0, 1, 2, 2, 0, 1]


@st.composite
def tasks(draw):
    """Draws sub-samples of many kinds, and steps that may already contain items."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    capacity = draw(st.sampled_from([1, 8, 100, 4096, 2**40]))
    count = draw(st.integers(1, 120))
    kind = draw(st.sampled_from(["uniform", "lognormal", "bimodal", "equal", "few"]))
    lengths = {
        "uniform": lambda: rng.integers(1, capacity + 1, size=count),
        "lognormal": lambda: rng.lognormal(np.log(capacity) - 1.5, 1.0, size=count),
        "bimodal": lambda: np.where(rng.random(count) < 0.2, capacity, max(capacity // 30, 1)),
        "equal": lambda: np.full(count, rng.integers(1, capacity + 1)),
        "few": lambda: rng.choice(rng.integers(1, capacity + 1, size=3), size=count),
    }[kind]()
    lengths = np.sort(np.clip(lengths, 1, capacity))[::-1].astype(np.int64)
    costs = np.sort(draw(st.sampled_from([lengths, lengths // 3, lengths**2 if capacity < 2**20 else lengths])))[::-1]
    num_ranks = draw(st.integers(1, 9))
    least = -(-int(lengths.sum()) // (capacity * num_ranks))
    num_steps = draw(st.integers(1, max(1, min(count, 2 * least))))
    if draw(st.booleans()):
        widths, levels = [num_ranks] * num_steps, [0] * num_steps
    else:
        widths = rng.integers(0, num_ranks + 1, size=num_steps).tolist()
        levels = rng.integers(0, 2 * int(costs.max()) + 1, size=num_steps).tolist()
        levels = draw(st.sampled_from([levels, sorted(levels, reverse=True)]))
    while sum(widths) > count:
        widths[int(np.argmax(widths))] -= 1
    bases = [level * (num_ranks - width) for level, width in zip(levels, widths, strict=True)]
    options = {"capacity": capacity, "most_items": draw(st.sampled_from([count, count, 1, 2, 5, 9]))}
    options |= {"widths": widths, "levels": levels, "bases": bases, "num_ranks": num_ranks}
    options |= {"by_length": draw(st.booleans()), "short_first": draw(st.sampled_from([0, 0, 2, 4]))}
    return lengths.tolist(), costs.tolist(), options


@given(task=tasks())
@example(task=([1], [0], uniform(1, 1, capacity=1, most_items=1, by_length=False)))
def test_packs_equal_the_twin_and_keep_the_rules(task):
    lengths, costs, options = task
    found = pack(lengths, costs, **options)
    assert found == LevelPacking(lengths, costs, **options).pack_of()
    if found is not None:
        tokens = np.bincount(found, weights=lengths, minlength=sum(options["widths"]))
        assert len(tokens) == sum(options["widths"])
        assert tokens.min(initial=1) >= 1
        assert tokens.max(initial=0) <= options["capacity"]
        assert np.bincount(found).max(initial=0) <= options["most_items"]


# --- gathered spans -------------------------------------------------------------------------------------------------
TOKEN_DTYPES = {1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 8: np.uint16}


def stored(sequences, code):
    """Returns the bytes of the sequences and the offset of each."""
    arrays = [np.array(sequence, dtype=TOKEN_DTYPES[code]) for sequence in sequences]
    pointers = np.cumsum([0, *(array.nbytes for array in arrays)])[:-1].astype(np.int64)
    data = np.frombuffer(b"".join(array.tobytes() for array in arrays), dtype=np.uint8)
    return arrays, data, pointers


def gathered(data, pointers, code, spans):
    columns = np.array(spans, dtype=np.int64).reshape(-1, 3).T.copy()
    out = np.empty(abs(int(columns[2].sum())), dtype=TOKEN_DTYPES[code])
    gather_spans(data, pointers, dtype_code=code, sequences=columns[0], starts=columns[1], lengths=columns[2], out=out)
    return out


@given(data=st.data(), code=st.sampled_from(sorted(TOKEN_DTYPES)))
def test_gathered_spans_equal_their_twin(data, code):
    bounds = np.iinfo(TOKEN_DTYPES[code])
    tokens = st.lists(st.integers(int(bounds.min), int(bounds.max)), max_size=8)
    arrays, buffer, pointers = stored(data.draw(st.lists(tokens, min_size=1, max_size=6)), code)
    spans = []
    for sequence in data.draw(st.lists(st.integers(0, len(arrays) - 1), max_size=8)):
        start = data.draw(st.integers(0, len(arrays[sequence])))
        spans.append((sequence, start, data.draw(st.integers(0, len(arrays[sequence]) - start))))
    expected = np.concatenate([np.empty(0, TOKEN_DTYPES[code]), *windows.gather_spans(arrays, spans)])
    assert np.array_equal(gathered(buffer, pointers, code, spans), expected)


@pytest.mark.parametrize(
    ("span", "message"),
    [
        *((span, "span 0 is outside the dataset") for span in [(2, 0, 1), (-1, 0, 1), (0, -1, 1), (0, 0, -1)]),
        *((span, "leave the file of 12 bytes") for span in [(1, 0, 2), (1, 2, 1), (0, 4, 0)]),
    ],
)
def test_spans_beyond_the_data_are_refused(span, message):
    _, data, pointers = stored([[1, 2], [3]], 4)
    with pytest.raises(IndexError, match=message):
        gathered(data, pointers, 4, [span])
