"""`tokenloom explore`: a local web application to explore a dataset, run or job."""

from __future__ import annotations

import os
import threading
import webbrowser
from dataclasses import dataclass
from typing import Annotated

from tokenloom.cli.options import Written
from tokenloom.cli.output import StoppedBySignal, say
from tokenloom.cli.run_options import BatchSizes
from tokenloom.loading.batch_sizes import Topology
from tokenloom.loading.losses import losses_folder
from tokenloom.setting_types import Number
from tokenloom_look.explorer.application import views_of
from tokenloom_look.explorer.server import LocalServer
from tokenloom_look.explorer.session import Session
from tokenloom_look.target import TargetOptions

_SERVER = "server"


@dataclass(frozen=True, kw_only=True)
class Options(TargetOptions, BatchSizes):
    """Serve a page on this machine to browse documents and samples, the positions at which a run reads a document, and
    the progress of a preprocessing job. Nothing is written. The printed address contains a token; the page shows data
    only with the token. Ctrl-C ends the server.

    Attributes:
        follow: file with statistics of a training loop, such as JsonLinesWriter writes, to draw as charts.
        consumed_samples: number of samples consumed by training, to mark positions as seen.
        losses: folder of losses written by LossRecorder (default: `losses` beside run.toml, if that folder exists).
        host: address to listen on.
        port: port to listen on (default: a free port).
        no_browser: print the address without opening a browser.
    """

    follow: Annotated[str | None, Written(metavar="FILE")] = None
    consumed_samples: Number | None = None
    losses: Annotated[str | None, Written(metavar="FOLDER")] = None
    host: Annotated[str, Written(group=_SERVER)] = "127.0.0.1"
    port: Annotated[Number, Written(group=_SERVER)] = 0
    no_browser: Annotated[bool, Written(group=_SERVER)] = False


def run(options: Options) -> int:
    """Serves until Ctrl-C."""
    return _serve(options, session_of(options))


def _serve(options: Options, session: Session) -> int:
    server = LocalServer(views_of(session), host=options.host, port=options.port)
    if not server.is_loopback:
        say(
            f"warning: other machines can reach {options.host}, and the connection is not encrypted: anyone with the "
            "token can see this data"
        )
    print(server.url, flush=True)
    # Without a display, a text browser could open in this terminal.
    if not options.no_browser and (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        threading.Thread(target=webbrowser.open, args=(server.url_for_once(),), daemon=True).start()
    try:
        server.run()
    except StoppedBySignal:
        raise
    except KeyboardInterrupt:
        say("stopped")
    return 0


def session_of(options: Options) -> Session:
    target = options.open()
    sizes = options.batch_sizes(None if target.run is None else target.run.lock)
    return Session(
        target=target,
        topology=None if sizes is None else Topology(batch_sizes=sizes),
        consumed=options.consumed_samples,
        followed=options.follow,
        losses=None if target.run is None else losses_folder(target.run, options.losses),
    )
