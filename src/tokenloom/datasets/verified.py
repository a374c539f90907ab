"""The complete check of the data of a run, as its settings ask for it."""

from __future__ import annotations

import os

from tokenloom.datasets.config import BlendedMegatronDatasetConfig
from tokenloom.indexed.verification import Verification, verification
from tokenloom.storage.addresses import is_remote
from tokenloom.storage.atomic import own_folder


def verification_of(config: BlendedMegatronDatasetConfig) -> Verification | None:
    """Returns the check that runs in the background of datasets with `verify="full"`; None with "quick".

    `wait()` waits until all that was built is checked, and raises what was found. Every sample that is asked for raises
    it too, in this process and in workers that are forked from it.

    Args:
        config: the settings.
    """
    if config.verify != "full" or config.mock:
        return None
    if config.path_to_cache is not None and not is_remote(config.path_to_cache):
        return verification(os.path.join(config.path_to_cache, "verified"))
    path = os.path.join(config.storage_settings.folder, f"verified-{os.geteuid()}")
    return verification(own_folder(path, hint="name a folder for indices with `path_to_cache`"))
