"""Every error tokenloom raises on purpose.

This is the lowest module: it imports nothing of tokenloom. Each class is also the standard one that a caller would
expect; the reference asserts where the errors are raised that are also `AssertionError`, and its clients catch that.
Each message says what was expected, what was found, and where; the remedy, when there is one, is in `hint`.
"""


class TokenloomError(Exception):
    """The base of all errors of this package; `hint` says what to do about it, where that is known."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\nhint: {self.hint}"

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.message, self.hint))


def _rebuild(kind: type[TokenloomError], message: str, hint: str | None) -> TokenloomError:
    return kind(message, hint=hint)


class ConfigError(TokenloomError, ValueError, AssertionError):
    """A setting has a value it cannot have, or contradicts another setting."""


class OutputExistsError(ConfigError, FileExistsError):
    """An output is there already, was not made by this very job, and may not be replaced; it is as it was."""


class MissingExtraError(TokenloomError, ImportError):
    """An optional dependency is needed and not installed; the hint is the command that installs it."""


class DatasetFormatError(TokenloomError, ValueError, AssertionError):
    """A `.bin`/`.idx` pair does not hold what its header promises."""


class DatasetNotFoundError(TokenloomError, FileNotFoundError, AssertionError):
    """One or both files of a `.bin`/`.idx` pair are missing."""


class TokenRangeError(TokenloomError, OverflowError):
    """A token id does not fit the dtype it would be stored as."""


class StorageError(TokenloomError, OSError):
    """Bytes could not be read or written."""


class MissingObjectError(StorageError, FileNotFoundError):
    """A store has no such bucket or object."""


class AccessDeniedError(StorageError, PermissionError):
    """A store refuses a request with these credentials."""


class OutputBusyError(StorageError, BlockingIOError):
    """Another process, or another writer of this one, is writing the same output."""


class ReplacedObjectError(StorageError):
    """An object was replaced after it was opened; bytes of the two are never mixed."""


class ChangedFileError(StorageError):
    """A file is not the one that was opened: it was replaced, truncated or overwritten; the two are never mixed."""


class UnavailableError(StorageError):
    """A store does not answer, or not as it should; reads are tried again until their deadline."""


class IndexCacheError(TokenloomError, ValueError):
    """A cached index cannot be read, trusted or written."""


class OversampledError(TokenloomError, IndexError):
    """A blend takes more samples from a dataset than it has; the message names the dataset, and both numbers."""


class TokenizerError(TokenloomError, ValueError):
    """A tokenizer cannot be loaded, or lacks something the task needs."""


class MissingTokenError(TokenizerError, NotImplementedError):
    """A tokenizer has no token of the role asked for; the reference's tokenizers raise `NotImplementedError` there."""


class InputError(TokenloomError, ValueError):
    """A line of input text is unusable; the message names file and line."""


class RefusedTextError(TokenizerError, InputError):
    """A tokenizer, or what prepares texts for it, refuses a text or fails on it; other texts are not concerned."""


class StuckRecordError(InputError):
    """A record takes longer than it may, in code that cannot be interrupted: a thread is left behind."""


class WorkerError(TokenloomError, RuntimeError):
    """Processes that work on shards of a corpus keep dying; what they finished is kept."""


class BuildError(TokenloomError, RuntimeError):
    """A rank failed or died while all were building; every rank raises this, with that rank's cause."""


class DivergenceError(TokenloomError, RuntimeError):
    """Ranks hold different values, or are at different steps, where they must be the same."""


class ConformanceError(TokenloomError, AssertionError):
    """A dataset, store or order does not do what everything of its kind must do; see `tokenloom.testing`."""


class TokenloomWarning(UserWarning):
    """The base of all warnings of this package."""


class ShortDatasetWarning(TokenloomWarning):
    """A dataset holds too few tokens for a single sample."""


class CacheNotWrittenWarning(TokenloomWarning):
    """An index was built but could not be cached; it will be built again next time."""


class AmbiguousPadWarning(TokenloomWarning):
    """The tokenizer's pad id is also another special token."""


class IgnoredSettingWarning(TokenloomWarning):
    """A setting has no effect beside another."""


class UntrainableWarning(TokenloomWarning):
    """Conversations have no token to train on within a sample."""


class TokenizerMismatchWarning(TokenloomWarning):
    """Data were, or seem to be, made with another tokenizer than the one that is given."""


class DataMismatchWarning(TokenloomWarning):
    """Data are not of the kind that a class reads, such as documents where it looks for sentences."""


class MissingEodWarning(TokenloomWarning):
    """Settings look for end-of-document tokens that the data do not have."""


class ResonanceWarning(TokenloomWarning):
    """Ranks see other mixtures than the blend has, all run long: its order and their turns are in step."""


class CutShortWarning(TokenloomWarning):
    """A run ends before its stages do, because a source has been read `max_passes` times."""


class DuplicateDataWarning(TokenloomWarning):
    """The same data are named twice, in one blend or in two splits."""
