"""`tokenloom explore`: a local web application to look at data, a run or a job."""

from __future__ import annotations

import argparse
import os
import threading
import webbrowser
from typing import Any

from tokenloom.cli.run_common import add_batch_sizes, batch_sizes_of, lengths_of
from tokenloom.cli.stopping import StoppedBySignal, say
from tokenloom.cli.values import whole_number
from tokenloom.loading.topology import Topology
from tokenloom_look.explorer.application import views_of
from tokenloom_look.explorer.looking import Looking
from tokenloom_look.explorer.server import LocalServer
from tokenloom_look.target import add_target, target_of


def add_parser(commands: Any) -> None:
    """Declares the command."""
    parser = commands.add_parser(
        "explore",
        description="Serves a page on this machine alone, to look at documents, samples, where they are read, and how "
        "a job goes. It writes nothing. The printed address has a token, without which no data are shown. Ctrl-C "
        "ends it.",
    )
    add_target(parser)
    parser.add_argument(
        "--follow", metavar="FILE", help="JSON lines that a training loop writes, such as those of JsonLinesWriter"
    )
    group = parser.add_argument_group("steps")
    add_batch_sizes(group)
    group.add_argument(
        "--consumed-samples", type=whole_number, metavar="N", help="positions that training has consumed, to mark them"
    )
    group = parser.add_argument_group("where it is served")
    group.add_argument("--host", default="127.0.0.1", help="address to listen at (default 127.0.0.1)")
    group.add_argument("--port", type=whole_number, default=0, metavar="N", help="port (default: one that is free)")
    group.add_argument("--no-browser", action="store_true", help="print the address, and open no browser")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Serves until Ctrl-C."""
    return _serve(options, looking_of(options))


def _serve(options: argparse.Namespace, looking: Looking) -> int:
    server = LocalServer(views_of(looking), host=options.host, port=options.port)
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


def looking_of(options: argparse.Namespace) -> Looking:
    """Returns what is to be looked at, opened.

    Raises:
        TokenloomError: it is not there, or cannot be used.
    """
    target = target_of(options)
    sizes = batch_sizes_of(options, lengths_of(None if target.run is None else target.run.lock))
    return Looking(
        target=target,
        topology=None if sizes is None else Topology(batch_sizes=sizes),
        consumed=options.consumed_samples,
        followed=options.follow,
    )


def _has_display() -> bool:
    """Whether a browser would have a window; a browser in the terminal would hide what is printed there."""
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
