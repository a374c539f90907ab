"""`tokenloom explore`: a local web application to look at data, a run or a job."""

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
from tokenloom_look.explorer.looking import Looking
from tokenloom_look.explorer.server import LocalServer
from tokenloom_look.target import TargetOptions

_SERVED = "where it is served"


@dataclass(frozen=True, kw_only=True)
class Options(TargetOptions, BatchSizes):
    """Serves a page on this machine alone, to look at documents, samples, where they are read, and how a job goes. It
    writes nothing. The printed address has a token, without which no data are shown. Ctrl-C ends it.

    Attributes:
        follow: JSON lines that a training loop writes, such as those of JsonLinesWriter.
        consumed_samples: positions that training has consumed, to mark them.
        losses: folder of losses that LossRecorder keeps (default: `losses` beside run.toml, where there is one).
        host: address to listen at.
        port: port (default: one that is free).
        no_browser: print the address, and open no browser.
    """

    follow: Annotated[str | None, Written(metavar="FILE")] = None
    consumed_samples: Number | None = None
    losses: Annotated[str | None, Written(metavar="FOLDER")] = None
    host: Annotated[str, Written(group=_SERVED)] = "127.0.0.1"
    port: Annotated[Number, Written(group=_SERVED)] = 0
    no_browser: Annotated[bool, Written(group=_SERVED)] = False


def run(options: Options) -> int:
    """Serves until Ctrl-C."""
    return _serve(options, looking_of(options))


def _serve(options: Options, looking: Looking) -> int:
    server = LocalServer(views_of(looking), host=options.host, port=options.port)
    if not server.is_loopback:
        say(
            f"warning: others on the network can reach {options.host}; who has the address with its token sees all "
            "this data, and so does who listens, since nothing is encrypted"
        )
    print(server.url, flush=True)
    # A browser in the terminal would hide what is printed there.
    if not options.no_browser and (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        threading.Thread(target=webbrowser.open, args=(server.url_for_once(),), daemon=True).start()
    try:
        server.run()
    except StoppedBySignal:
        raise
    except KeyboardInterrupt:  # the way to end it
        say("stopped")
    return 0


def looking_of(options: Options) -> Looking:
    target = options.open()
    sizes = options.batch_sizes(None if target.run is None else target.run.lock)
    return Looking(
        target=target,
        topology=None if sizes is None else Topology(batch_sizes=sizes),
        consumed=options.consumed_samples,
        followed=options.follow,
        losses=None if target.run is None else losses_folder(target.run, options.losses),
    )
