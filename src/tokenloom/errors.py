"""Every error tokenloom raises on purpose.

This is the lowest module: it imports nothing of tokenloom.

    TokenloomError
    ├── ConfigError (ValueError, AssertionError)  a setting is wrong, or two settings contradict each other
    │   └── OutputExistsError (FileExistsError)       an output is there, and may not be replaced
    ├── MissingExtraError (ImportError)     an optional dependency is not installed
    ├── DatasetFormatError (ValueError, AssertionError)  a .bin/.idx pair is truncated, foreign or inconsistent
    ├── DatasetNotFoundError (FileNotFoundError, AssertionError)  one of its files is missing
    ├── TokenRangeError (OverflowError)     a token id does not fit the dtype it is stored as
    ├── StorageError (OSError)              reading or writing bytes failed
    │   ├── MissingObjectError (FileNotFoundError)    a store has no such bucket or object
    │   ├── AccessDeniedError (PermissionError)       a store refuses these credentials
    │   ├── OutputBusyError (BlockingIOError)         another process is writing the same output
    │   ├── ReplacedObjectError             an object is not the one that was opened
    │   ├── ChangedFileError                a file is not the one that was opened: replaced, truncated or overwritten
    │   └── UnavailableError                a store does not answer, or not as it should; trying again may help
    ├── IndexCacheError (ValueError)        a cached index cannot be read, trusted or written
    ├── OversampledError (IndexError)       a blend takes more samples from a dataset than it has
    ├── TokenizerError (ValueError)         a tokenizer cannot be loaded, or does not fit the task
    │   └── MissingTokenError (NotImplementedError)   it has no token of the role asked for
    ├── InputError (ValueError)             a line of input text is unusable
    │   ├── RefusedTextError                a tokenizer refuses a text, or fails on it; a TokenizerError too
    │   └── StuckRecordError                a record takes longer than it may
    ├── WorkerError (RuntimeError)          processes that work on shards of a corpus keep dying
    ├── BuildError (RuntimeError)           a rank failed or died, so no rank may go on
    ├── DivergenceError (RuntimeError)      ranks hold different values where they must hold the same
    └── ConformanceError (AssertionError)   an object does not do what `tokenloom.testing` expects of its kind

The reference asserts where the three errors that are also `AssertionError` are raised, and its clients catch that.
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
    """A setting has a value it cannot have, or contradicts another setting.

    Such as "expected `split` beside `blend`, found none".
    Usual causes: a setting is missing beside another, has the wrong type or range, or names what another one excludes.
    What to do: the message names the setting, what it takes and what it got; the hint names an example. Nothing was
    read or written. In `run.toml` the line is quoted, with its number.
    """


class OutputExistsError(ConfigError, FileExistsError):
    """An output is there already, was not made by this very job, and may not be replaced; it is as it was.

    Such as "`corpus_text_document.bin` exists, and was not made by this very job".
    Usual causes: the same output was named for other input, another tokenizer or other options.
    What to do: choose another output; or replace it with `--overwrite` (`overwrite=True`), which happens only once the
    new one is complete. A job that was merely interrupted goes on with the same command.
    """


class MissingExtraError(TokenloomError, ImportError):
    """An optional dependency is needed and not installed; the hint is the command that installs it.

    Such as "`pyarrow` is not installed".
    Usual causes: tokenloom was installed without the extra; or into another environment than the one that runs.
    What to do: run the command of the hint, such as `pip install 'tokenloom[parquet]'`; `pip install 'tokenloom[all]'`
    brings all of them.
    """


class DatasetFormatError(TokenloomError, ValueError, AssertionError):
    """A `.bin`/`.idx` pair does not hold what its header promises.

    Such as "`web.bin`: expected 8192 bytes (the index of `web`), found 4096".
    Usual causes: the pair was copied in part or is still being written; `.bin` and `.idx` are of different datasets;
    the file is of another program or format.
    What to do: compare sizes with the original and copy again; `tokenloom verify PREFIX` checks every row and token.
    Files that tokenloom wrote itself have their name only once they are whole.
    """


class DatasetNotFoundError(TokenloomError, FileNotFoundError, AssertionError):
    """One or both files of a `.bin`/`.idx` pair are missing.

    Such as "`data` holds half of the pair `data/web`: `data/web.idx` is missing".
    Usual causes: a prefix with a typing error, or relative to another folder; `_text_document` left off; a copy without
    the index.
    What to do: name the pair by its prefix, without `.bin`. `tokenloom info FOLDER` lists the pairs of a folder.
    """


class TokenRangeError(TokenloomError, OverflowError):
    """A token id does not fit the dtype it would be stored as.

    Such as "token id 70000 in document 3 does not fit uint16, which holds 0 to 65535".
    Usual causes: the dtype was chosen for a smaller vocabulary, or tokens were added to a tokenizer later.
    What to do: choose the dtype with `DType.optimal_dtype(vocab_size)`, and write the dataset again. It would have been
    wrapped into other tokens.
    """


class StorageError(TokenloomError, OSError):
    """Bytes could not be read or written.

    Such as "cannot write `out/corpus.bin`: No space left on device".
    Usual causes: a disk that is full, a quota, missing permissions, a mount that went away.
    What to do: the message names the file and what the system said. What was begun is not left under its name, so the
    same command can run again.
    """


class MissingObjectError(StorageError, FileNotFoundError):
    """A store has no such bucket or object.

    Such as "no object `s3://corpus/web.idx`".
    Usual causes: a typing error in bucket or key; an endpoint of another service or region.
    What to do: list the bucket with the store's own tools, and compare `AWS_ENDPOINT_URL` and `AWS_REGION`.
    """


class AccessDeniedError(StorageError, PermissionError):
    """A store refuses a request with these credentials.

    Such as "no credentials for `s3://corpus/web.idx` were found".
    Usual causes: no credentials in the environment of this process (a batch job has another one), expired ones, a
    profile that only boto3 reads, or no right to list or read.
    What to do: set `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY`, or install the extra `aws` for profiles and roles.
    Secrets are never printed.
    """


class OutputBusyError(StorageError, BlockingIOError):
    """Another process, or another writer of this one, is writing the same output.

    Such as "`corpus.bin` is being written by process 4711 on node7".
    Usual causes: the same command was started twice, or an earlier one still ends.
    What to do: wait for its end, or choose another output. A lock whose process is gone frees itself. Jobs of shards
    may share a folder, and do not raise this.
    """


class ReplacedObjectError(StorageError):
    """An object was replaced after it was opened; bytes of the two are never mixed.

    Such as "`s3://corpus/web.bin` was replaced after it was opened".
    Usual causes: the dataset was written again while a run was reading it.
    What to do: open the dataset again, if that data is meant; a run should read data that nobody replaces.
    """


class ChangedFileError(StorageError):
    """A file is not the one that was opened: it was replaced, truncated or overwritten; the two are never mixed.

    Such as "`web.bin` was truncated while it was mapped: expected 8192 bytes, found 4096".
    Usual causes: somebody writes into the file, copies over it, or the disk or network file system fails.
    What to do: restore the file and open it again; replace files by renaming, never in place.
    """


class UnavailableError(StorageError):
    """A store does not answer, or not as it should; reads are tried again until their deadline.

    Such as "`s3://corpus/web.bin` cannot be reached: connection refused".
    Usual causes: a wrong endpoint, no route or proxy from this node, a store that is down or throttles.
    What to do: try the endpoint from the same node (`curl $AWS_ENDPOINT_URL`). `deadline_seconds` and `retries` of
    `ObjectStorageSettings` say how long it is tried.
    """


class IndexCacheError(TokenloomError, ValueError):
    """A cached index cannot be read, trusted or written.

    Such as "`….npy` does not fit the data: it is of other documents".
    Usual causes: `fast_cache_load` without a complete cache; a cache that was copied in part, or is of other data; a
    folder that may not be written.
    What to do: remove the files that are named, and the index is built again; or build all of it beforehand with
    `tokenloom prepare-cache` and the same settings.
    """


class OversampledError(TokenloomError, IndexError):
    """A blend takes more samples from a dataset than it has; the message names the dataset, and both numbers.

    Such as "the blend (train) takes 1020 samples from `web`, which has 1000".
    Usual causes: very small weights or small datasets, where rounding asks for a sample more than was built.
    What to do: set `extend_short_datasets=True`, which builds what is owed; or raise `mid_level_dataset_surplus`, as
    Megatron does.
    """


class TokenizerError(TokenloomError, ValueError):
    """A tokenizer cannot be loaded, or lacks something the task needs.

    Such as "tokenizer `tokenizer.json` has no token '<eos>' for `eod`".
    Usual causes: a path to something else, a rank file without its pattern, a token name that the vocabulary spells
    otherwise, data of another tokenizer.
    What to do: name a `tokenizer.json`, a SentencePiece `.model`, a tiktoken rank file, a folder with one, `byte` or
    `null:N`. The hint lists the special tokens that it has.
    """


class MissingTokenError(TokenizerError, NotImplementedError):
    """A tokenizer has no token of the role asked for; the reference's tokenizers raise `NotImplementedError` there.

    Such as "expected one token that ends a document, found none by name or convention".
    Usual causes: the tokenizer names no end-of-document token, or has several that could be it.
    What to do: name it: `--eod-token '<|endoftext|>'`, or `eod_token=` of `load_tokenizer`.
    """


class InputError(TokenloomError, ValueError):
    """A line of input text is unusable; the message names file and line.

    Such as "`crawl.jsonl` holds no documents: 0 blank lines, 31 bad records; the first is `crawl.jsonl` line 1:
    not JSON".
    Usual causes: a truncated line, another key for the text, a file of another format than its name says.
    What to do: name the key with `--json-keys`; correct the line; or let some lines be bad: `--max-bad-records 0.1%` or
    `--skip-bad-lines` set them aside, in a file that names each.
    """


class RefusedTextError(TokenizerError, InputError):
    """A tokenizer, or what prepares texts for it, refuses a text or fails on it; other texts are not concerned.

    Such as "expected integers in [0, 512) between white space, found 'x'".
    Usual causes: texts that are no text (a megabyte of one letter), ids for `null:N` that are out of range, a chat
    template that refuses a conversation.
    What to do: it counts as a bad record: `--skip-bad-lines` or `--max-bad-records` set it aside.
    """


class StuckRecordError(InputError):
    """A record takes longer than it may, in code that cannot be interrupted: a thread is left behind.

    Such as "tokenising `crawl.jsonl` from line 4096 on takes longer than 600 seconds".
    Usual causes: a text without white space that a tokenizer takes quadratic time for; a chat template that never ends.
    What to do: find the record from the line that is named; raise the limit that the hint names if the record is right.
    """


class WorkerError(TokenloomError, RuntimeError):
    """Processes that work on shards of a corpus keep dying; what they finished is kept.

    Such as "a process that worked on shard 3 (from `crawl.jsonl` on) died (signal 9), as did 2 before it".
    Usual causes: the memory of machine or container is used up; a library crashes on a record.
    What to do: run the same command again with fewer `--workers` or a smaller `--shard-size`; only what is missing is
    done.
    """


class BuildError(TokenloomError, RuntimeError):
    """A rank failed or died while all were building; every rank raises this, with that rank's cause.

    Such as "rank 3 on `node7` failed in the build: StorageError: cannot write `web.npy`: No space left on device".
    Usual causes: whatever the message says of that rank; a rank that ended before the others, or never came to build.
    What to do: look at the log of the rank that is named, mend that, and start all ranks again. Ranks do not hang: they
    raise this.
    """


class DivergenceError(TokenloomError, RuntimeError):
    """Ranks hold different values, or are at different steps, where they must be the same.

    Such as "ranks differ in `sequence_length`: 4096 on ranks 0-7, 2048 on rank 8".
    Usual causes: nodes with other copies of data or settings; code that takes steps on some ranks only; a loader that
    was resumed otherwise.
    What to do: compare what the message names on the ranks that it names; `tokenloom run digest` names the order in a
    word.
    """


class ConformanceError(TokenloomError, AssertionError):
    """A dataset, store or order does not do what everything of its kind must do; see `tokenloom.testing`.

    Such as "expected np.int64(999) as `dataset.batch(positions)['number'][0, 0]`, found 0".
    Usual causes: `batch` or `__getitems__` give other samples than `dataset[k]`; state that one call leaves for the
    next.
    What to do: the message names the check; its rule is in the guide on testing your own dataset. pytest takes it for a
    failed assertion.
    """


class TokenloomWarning(UserWarning):
    """The base of all warnings of this package."""


class ShortDatasetWarning(TokenloomWarning):
    """A dataset holds too few tokens for a single sample.
    Usual causes: a dataset that is smaller than `sequence_length`, or a split so small that few documents are in it.
    What to do: give such a split no weight, make samples shorter, or pack (`window_policy="best_fit"`).
    """


class CacheNotWrittenWarning(TokenloomWarning):
    """An index was built but could not be cached; it will be built again next time.
    Usual causes: the folder of the data may not be written, and no `path_to_cache` is named.
    What to do: name a folder that may be written with `path_to_cache`; or build it once with `tokenloom prepare-cache`.
    """


class AmbiguousPadWarning(TokenloomWarning):
    """The tokenizer's pad id is also another special token.
    Usual causes: tokenizers that use `<|endoftext|>` for both.
    What to do: nothing: padding is told from data by position, so that real tokens keep their loss. Setting
    `allow_ambiguous_pad_tokens=True` masks them by value, as Megatron can.
    """


class IgnoredSettingWarning(TokenloomWarning):
    """A setting has no effect beside another.
    Usual causes: settings that exclude each other, or that were taken over from another program.
    What to do: take out the one that is named, so that nobody believes in it.
    """


class UntrainableWarning(TokenloomWarning):
    """Conversations have no token to train on within a sample.
    Usual causes: prompts that are longer than a sample; a template or schema that finds no words of the assistant.
    What to do: make samples longer; look at one with `tokenloom show PREFIX --sft --sample 0`; or leave them out with
    `untrainable_conversations="drop"`.
    """


class TokenizerMismatchWarning(TokenloomWarning):
    """Data were, or seem to be, made with another tokenizer than the one that is given.
    Usual causes: another tokenizer or version of it was given than the one of the manifest beside the data.
    What to do: give the right one, or tokenize again. A manifest that names another one is an error; the warning is for
    data without one.
    """


class DataMismatchWarning(TokenloomWarning):
    """Data are not of the kind that a class reads, such as documents where it looks for sentences.
    Usual causes: `_text_document` data given to BERT, which looks for sentences, or the other way round.
    What to do: make the data with `tokenloom preprocess --split-sentences`, or name the right ones.
    """


class MissingEodWarning(TokenloomWarning):
    """Settings look for end-of-document tokens that the data do not have.
    Usual causes: data that were made without `--append-eod`, read with `reset_position_ids`, `reset_attention_mask` or
    `eod_mask_loss`.
    What to do: tokenize with `--append-eod`; or use `inter_document_masking`, which takes boundaries from the index.
    """


class ResonanceWarning(TokenloomWarning):
    """Ranks see other mixtures than the blend has, all run long: its order and their turns are in step.
    Usual causes: even weights and a number of ranks that share a rhythm, with micro-batches dealt by turns.
    What to do: set `mixing_block=1024`, use a run with `mix = "random"`, or `BalancedSampler`, which keeps global
    batches as they are.
    """


class DuplicateDataWarning(TokenloomWarning):
    """The same data are named twice, in one blend or in two splits.
    Usual causes: a glob that also matches a prefix that is named; the same pair for training and validation.
    What to do: name data once; to read it more often, give it more weight.
    """
