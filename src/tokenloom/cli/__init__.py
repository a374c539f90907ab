"""The command line: one module per command, each with `Options` and `run`. No logic lives here."""

from __future__ import annotations

import argparse
import errno
import signal
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from tokenloom.cli.commands import COMMANDS
from tokenloom.cli.parser import CommandParser
from tokenloom.cli.stopping import StoppedBySignal, drop_output, flush_output, say, signals_raised, with_notes
from tokenloom.errors import ConfigError, MissingExtraError, TokenloomError
from tokenloom.storage.secrets import admit

_OUTPUT_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors of printing: all other writing words its errors, and names its file."""


class ShowVersion(argparse.Action):
    """Prints the version, which is looked up only then: that takes 20 ms."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from importlib.metadata import version

        print(f"tokenloom {version('tokenloom')}")
        parser.exit()


def build_parser(names: Iterable[str] | None = None) -> CommandParser:
    """Returns the parser of the command line.

    Args:
        names: commands whose modules are imported at once; None for all. The others are when they are asked for.
    """
    parser = CommandParser(prog="tokenloom", description="The data pipeline that feeds large-language-model training.")
    parser.add_argument("-V", "--version", action=ShowVersion, nargs=0, help="print the version and stop")
    parser.add_commands(COMMANDS, module=f"{__name__}.{{}}")
    if names is None:
        parser.load_all()
    else:
        parser.load(names)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit status.

    0 is success, 1 a reported problem, 2 wrong usage, 130 interrupted, 143 and 129 stopped by SIGTERM and SIGHUP, and
    141 that nobody read the output any more.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        words = [_admitted(word) for word in words]
        options = build_parser(()).parse_args(words)
    except (ConfigError, MissingExtraError) as error:
        return _refused(error, CommandParser(prog="tokenloom"))
    except SystemExit:  # after printing help
        _is_output_written()
        raise
    from tokenloom.cli.hints import warnings_in_options  # help needs none of these
    from tokenloom.cli.progress_display import progress_shown

    try:
        with signals_raised(), warnings_in_options(options.parser), progress_shown():
            status: int = options.run(options)
            flush_output()
    except TokenloomError as error:
        status = _refused(error, options.parser)
    except StoppedBySignal as stopped:
        say(with_notes(f"stopped by {stopped.name}", stopped))
        status = stopped.exit_status
    except KeyboardInterrupt as stopped:
        say(with_notes("interrupted", stopped))
        status = 130
    except BrokenPipeError:  # the reader of our output has seen enough, as `head` does
        status = 128 + signal.SIGPIPE
    except OSError as error:
        if error.filename is not None or error.errno not in _OUTPUT_ERRORS:
            raise
        drop_output()
        return _output_failed(error)
    return status if _is_output_written() else max(status, 1)


def _admitted(word: str) -> str:
    """Returns a word of the command line without what is secret in an address; see `admit`."""
    option, equals, value = word.partition("=")
    if word.startswith("--") and "://" in value:
        return option + equals + admit(value)
    return admit(word)


def _refused(error: TokenloomError, parser: CommandParser) -> int:
    from tokenloom.cli.hints import error_lines

    say(error_lines(error, parser))
    return 1


def _is_output_written() -> bool:
    """Hands on what was printed; whether that was possible. What is left is dropped."""
    try:
        flush_output()
    except BrokenPipeError:
        drop_output()
    except OSError as error:
        drop_output()
        return not _output_failed(error)
    return True


def _output_failed(error: OSError) -> int:
    say(f"error: cannot write the output: {error.strerror}")
    return 1
