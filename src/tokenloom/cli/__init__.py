"""The command line: a module per group of commands, each a function of its options. No logic lives here."""

from __future__ import annotations

import errno
import signal
import sys
from collections.abc import Sequence

from tokenloom.cli.options import CommandParser
from tokenloom.cli.options import build_parser as build_parser
from tokenloom.cli.output import StoppedBySignal, drop_output, say, signals_raised
from tokenloom.errors import TokenloomError
from tokenloom.storage.secrets import admit

_OUTPUT_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors of printing: all other writing words its errors, and names its file."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit status.

    0 is success, 1 a reported problem, 2 wrong usage, 130 interrupted, 143 and 129 stopped by SIGTERM and SIGHUP, and
    141 that nobody read the output any more.
    """
    words = sys.argv[1:] if arguments is None else arguments
    parser, status = CommandParser(prog="tokenloom"), 1
    try:
        try:
            options = build_parser(()).parse_args([_admitted(word) for word in words])
            from tokenloom.cli.messages import progress_shown, warnings_in_options  # help needs none of these

            parser = options.parser
            with signals_raised(), warnings_in_options(parser), progress_shown():
                status = options.run(options)
        except TokenloomError as error:
            from tokenloom.cli.messages import error_lines

            say(error_lines(error, parser))
        except KeyboardInterrupt as stopped:
            said, status = "interrupted", 130
            if isinstance(stopped, StoppedBySignal):
                said, status = str(stopped), stopped.exit_status
            say("; ".join([said, *getattr(stopped, "__notes__", ())]))  # with what is done, and how to go on
        finally:  # what was printed is handed on here, where it can be told that it cannot be
            if sys.stdout is not None and not sys.stdout.closed:
                sys.stdout.flush()
    except BrokenPipeError:  # the reader of our output has seen enough, as `head` does
        drop_output()
        return 128 + signal.SIGPIPE
    except OSError as error:
        if error.filename is not None or error.errno not in _OUTPUT_ERRORS:
            raise
        drop_output()
        say(f"error: cannot write the output: {error.strerror}")
        return max(status, 1)
    return status


def _admitted(word: str) -> str:
    """Returns a word of the command line without what is secret in an address; see `admit`."""
    option, equals, value = word.partition("=")
    if word.startswith("--") and "://" in value:
        return option + equals + admit(value)
    return admit(word)
