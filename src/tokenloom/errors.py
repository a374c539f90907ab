"""All errors and warnings of tokenloom.

The lowest module: it imports nothing of tokenloom. Each class is also the standard one that a caller expects; some are
`AssertionError`, which clients of the reference catch. Messages name subject, problem and value; `hint` has the remedy.
"""


class TokenloomError(Exception):
    """The base of all errors of this package; `hint` is the remedy, if known."""

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
    """A setting has an invalid value, or contradicts another setting."""


class OutputExistsError(ConfigError, FileExistsError):
    """An output of another job exists and may not be replaced; it is unchanged."""


class MissingExtraError(TokenloomError, ImportError):
    """An optional dependency is not installed; the hint is the command that installs it."""


class DatasetFormatError(TokenloomError, ValueError, AssertionError):
    """A `.bin`/`.idx` pair contradicts its header."""


class DatasetNotFoundError(TokenloomError, FileNotFoundError, AssertionError):
    """One or both files of a `.bin`/`.idx` pair are missing."""


class TokenRangeError(TokenloomError, OverflowError):
    """A token id does not fit the dtype of the data."""


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
    """A file was replaced, truncated or overwritten after it was opened; bytes of the two are never mixed."""


class UnavailableError(StorageError):
    """A store does not answer properly; reads are retried until their deadline."""


class IndexCacheError(TokenloomError, ValueError):
    """A cached index cannot be read, trusted or written."""


class OversampledError(TokenloomError, IndexError):
    """A blend takes more samples from a dataset than it has; the message names the dataset, and both numbers."""


class TokenizerError(TokenloomError, ValueError):
    """A tokenizer cannot be loaded, or lacks something the task needs."""


class MissingTokenError(TokenizerError, NotImplementedError):
    """A tokenizer has no token of a role; the reference's tokenizers raise `NotImplementedError` for it."""


class InputError(TokenloomError, ValueError):
    """A line of input text is unusable; the message names file and line."""


class RefusedTextError(TokenizerError, InputError):
    """A tokenizer or its preparation refuses a text or fails on it; other texts are not affected."""


class StuckRecordError(InputError):
    """A record exceeds its time limit in code that cannot be interrupted: a thread is left behind."""


class WorkerError(TokenloomError, RuntimeError):
    """Processes of a job keep dying; finished shards are kept."""


class BuildError(TokenloomError, RuntimeError):
    """A rank failed or died during a joint build; every rank raises this, with that rank's cause."""


class DivergenceError(TokenloomError, RuntimeError):
    """Ranks have different values, or are at different steps, where they must agree."""


class ConformanceError(TokenloomError, AssertionError):
    """A dataset, store or order violates the contract of its kind; see `tokenloom.testing`."""


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
    """Data were, or seem to be, made with another tokenizer."""


class DataMismatchWarning(TokenloomWarning):
    """Data are of another kind than a class reads, such as documents instead of sentences."""


class MissingEodWarning(TokenloomWarning):
    """Settings need end-of-document tokens, which the data do not have."""


class ResonanceWarning(TokenloomWarning):
    """Ranks see other mixtures than that of the blend, since its order and their turns are in step."""


class CutShortWarning(TokenloomWarning):
    """A run ends before its stages do, because a source has been read `max_passes` times."""


class DuplicateDataWarning(TokenloomWarning):
    """The same data are named twice, in one blend or in two splits."""
