"""`megatron.core.datasets.retro.query.utils`: where neighbors lie in a project."""

from __future__ import annotations

from typing import Any

from tokenloom_retro.project import RetroProject

__all__ = ["get_neighbor_dir", "get_query_dir"]


def get_query_dir(project_dir: str) -> str:
    """Returns the folder of all neighbors of a project."""
    return RetroProject(project_dir).query_folder


def get_neighbor_dir(project_dir: str, key: str, dataset: Any) -> str:
    """Returns the folder of the neighbors of a split.

    Args:
        project_dir: path of the project folder.
        key: "train", "valid" or "test".
        dataset: its samples.
    """
    return RetroProject(project_dir).neighbor_folder(key, dataset)
