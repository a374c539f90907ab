"""`tokenloom explore`: a local web application to look at data, a run or a job."""

from __future__ import annotations

import argparse
import os
import threading
import webbrowser
from typing import Any

from tokenloom.cli.run_common import add_batch_sizes
from tokenloom.cli.stopping import StoppedBySignal, say
from tokenloom.cli.values import count, whole_number
from tokenloom.explorer.server import LocalServer


def add_parser(commands: Any) -> None:
    """Declares the command."""
    parser = commands.add_parser(
        "explore",
        help="look at data, a run or a job in the browser",
        description="Serves a page on this machine alone, to look at documents, samples, where they are read, and how "
        "a job goes. It writes nothing. The printed address has a token, without which nothing is answered. Ctrl-C "
        "ends it.",
    )
    parser.add_argument(
        "targets",
        nargs="+",
        metavar="TARGET",
        help="a prefix, several or weights and prefixes, a catalogue, a run.toml, or the folder of a job",
    )
    parser.add_argument("--compare", metavar="RUN", help="another run, to compare with")
    parser.add_argument("--tokenizer", metavar="PATH", help="tokenizer (default: what made the data)")
    parser.add_argument("--sequence-length", type=count, metavar="S", help="tokens of a sample, of a prefix or blend")
    add_batch_sizes(parser)
    group = parser.add_argument_group("where it is served")
    group.add_argument("--host", default="127.0.0.1", help="address to listen at (default 127.0.0.1)")
    group.add_argument("--port", type=whole_number, default=0, metavar="N", help="port (default: one that is free)")
    group.add_argument("--no-browser", action="store_true", help="print the address, and open no browser")
    parser.set_defaults(run=run, parser=parser)


def run(options: argparse.Namespace) -> int:
    """Serves until Ctrl-C."""
    server = LocalServer({}, host=options.host, port=options.port)
    if not server.is_loopback:
        say(
            f"warning: others on the network can reach {options.host}; who has the address with its token sees all "
            "this data, and so does who listens, since nothing is encrypted"
        )
    print(server.url, flush=True)
    if not options.no_browser and _has_display():
        threading.Thread(target=webbrowser.open, args=(server.url_for_once(),), daemon=True).start()
    try:
        server.run()
    except StoppedBySignal:
        raise
    except KeyboardInterrupt:  # the way to end it
        say("stopped")
    return 0


def _has_display() -> bool:
    """Whether a browser would have a window; a browser in the terminal would hide what is printed there."""
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
