"""The `tokenloom` command line: modules that parse options, call other packages and print their results."""

from __future__ import annotations

import errno
import signal
import sys
from collections.abc import Sequence

from tokenloom.cli.options import CommandParser
from tokenloom.cli.options import build_parser as build_parser
from tokenloom.cli.output import StoppedBySignal, discard_stdout, raise_signals, say
from tokenloom.errors import TokenloomError
from tokenloom.storage.secrets import admit

_OUTPUT_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""`errno` of a failed write to stdout. Code that uses other files converts `OSError` to `StorageError`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status.

    The status is 0 after success, 1 after a reported problem, 2 after wrong usage, 130 after Ctrl-C, 143 after SIGTERM,
    129 after SIGHUP, and 141 if the reader of stdout closed the pipe. `arguments` default to `sys.argv[1:]`.
    """
    words = sys.argv[1:] if arguments is None else arguments
    parser, status = CommandParser(prog="tokenloom"), 1
    try:
        try:
            options = build_parser(()).parse_args([_without_secrets(word) for word in words])
            from tokenloom.cli.messages import print_warnings, show_progress  # `--help` needs neither

            parser = options.parser
            with raise_signals(), print_warnings(parser), show_progress():
                status = options.run(options)
        except TokenloomError as error:
            from tokenloom.cli.messages import error_lines

            say(error_lines(error, parser))
        except KeyboardInterrupt as stopped:
            cause, status = "interrupted", 130
            if isinstance(stopped, StoppedBySignal):
                cause, status = str(stopped), stopped.exit_status
            say("; ".join([cause, *getattr(stopped, "__notes__", ())]))  # `if_stopped` adds notes on how to resume
        finally:  # flush here: a failure at interpreter exit could not be reported
            if sys.stdout is not None and not sys.stdout.closed:
                sys.stdout.flush()
    except BrokenPipeError:  # the reader of stdout has exited, as `head` does
        discard_stdout()
        return 128 + signal.SIGPIPE
    except OSError as error:
        if error.filename is not None or error.errno not in _OUTPUT_ERRORS:
            raise
        discard_stdout()
        say(f"error: cannot write to standard output: {error.strerror}")
        return max(status, 1)
    return status


def _without_secrets(word: str) -> str:
    """Returns `word` with placeholders for secrets if `word`, or the option value in it, is a URL; see `admit`."""
    option, equals, value = word.partition("=")
    if word.startswith("--") and "://" in value:
        return option + equals + admit(value)
    return admit(word)
