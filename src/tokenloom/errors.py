"""All errors and warnings of tokenloom.

Each class also derives from the standard exception that a caller would expect. Some classes also derive from
`AssertionError`, which code written for Megatron catches. This module imports no other module of tokenloom.
"""


class TokenloomError(Exception):
    """Base class of all errors of this package; `hint` says how to fix the problem, or is None."""

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
    """A setting has an invalid value or contradicts another setting."""


class OutputExistsError(ConfigError, FileExistsError):
    """An output path already contains the output of another job; nothing was overwritten."""


class MissingExtraError(TokenloomError, ImportError):
    """An optional dependency is not installed; the hint is the install command."""


class DatasetFormatError(TokenloomError, ValueError, AssertionError):
    """A `.bin`/`.idx` pair is damaged or inconsistent."""


class DatasetNotFoundError(TokenloomError, FileNotFoundError, AssertionError):
    """The `.bin` or the `.idx` file of a pair is missing."""


class TokenRangeError(TokenloomError, OverflowError):
    """A token id does not fit the dtype of the data."""


class StorageError(TokenloomError, OSError):
    """Reading or writing a file or object failed."""


class MissingObjectError(StorageError, FileNotFoundError):
    """The bucket or object does not exist."""


class AccessDeniedError(StorageError, PermissionError):
    """The object store rejected a request: the credentials are wrong or lack a permission."""


class OutputBusyError(StorageError, BlockingIOError):
    """Another process, or another writer in this process, is writing the same output."""


class ReplacedObjectError(StorageError):
    """An object was replaced after it was opened; no bytes of the new object were returned."""


class ChangedFileError(StorageError):
    """A file was replaced, truncated or overwritten after it was opened; no bytes of the changed file were returned."""


class UnavailableError(StorageError):
    """An object store does not answer, or answers with errors; reads are retried until their deadline."""


class IndexCacheError(TokenloomError, ValueError):
    """An index in the index cache is missing, damaged or stale, or cannot be written."""


class OversampledError(TokenloomError, IndexError):
    """A blend needs more samples of a dataset than the dataset has; the message has both numbers."""


class TokenizerError(TokenloomError, ValueError):
    """A tokenizer cannot be loaded or lacks a required feature."""


class MissingTokenError(TokenizerError, NotImplementedError):
    """A tokenizer does not define a special token; Megatron's tokenizers raise `NotImplementedError` in this case."""


class InputError(TokenloomError, ValueError):
    """An input record is invalid; the message names the file and the line."""


class RefusedTextError(TokenizerError, InputError):
    """A tokenizer fails on one text; other texts are not affected."""


class StuckRecordError(InputError):
    """Code that cannot be interrupted exceeds the time limit of a record; the thread of this code keeps running."""


class WorkerError(TokenloomError, RuntimeError):
    """Worker processes of a job die repeatedly; the files of finished shards stay."""


class BuildError(TokenloomError, RuntimeError):
    """A rank failed or died while ranks built datasets together; each rank raises this error with the same cause."""


class DivergenceError(TokenloomError, RuntimeError):
    """Ranks that must agree have different settings or data, or are at different steps."""


class ConformanceError(TokenloomError, AssertionError):
    """A dataset, store or order violates its interface contract; see `tokenloom.testing`."""


class TokenloomWarning(UserWarning):
    """Base class of all warnings of this package."""


class ShortDatasetWarning(TokenloomWarning):
    """A dataset has too few tokens for a single sample."""


class CacheNotWrittenWarning(TokenloomWarning):
    """An index was built but could not be written to the index cache; the next start builds the index again."""


class AmbiguousPadWarning(TokenloomWarning):
    """The tokenizer's pad id is also the id of another special token."""


class IgnoredSettingWarning(TokenloomWarning):
    """A setting has no effect because of another setting."""


class UntrainableWarning(TokenloomWarning):
    """In some conversations, none of the tokens that fit in a sample has loss."""


class TokenizerMismatchWarning(TokenloomWarning):
    """The data was, or appears to have been, tokenized with a tokenizer other than the specified one."""


class DataMismatchWarning(TokenloomWarning):
    """The data does not suit the dataset class, such as documents where sentences are expected."""


class MissingEodWarning(TokenloomWarning):
    """Settings need end-of-document tokens, but the data contains none."""


class ResonanceWarning(TokenloomWarning):
    """The mixture of some ranks differs from the blend: the blend's order repeats in step with the ranks' batches."""


class CutShortWarning(TokenloomWarning):
    """A run ends before the end of its last stage, because a source reached `max_passes`."""


class DuplicateDataWarning(TokenloomWarning):
    """The same data occurs twice, in one blend or in two splits."""
