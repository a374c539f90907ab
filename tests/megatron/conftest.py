"""Fixtures with a clean import system, and small packages that look like Megatron."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from tokenloom.megatron.installation import uninstall

TOKENIZER = "class MegatronLegacyTokenizer:\n    pass\n\nclass OnlyHere:\n    pass\n"
HELPERS = "def build_mapping():\n    return 'theirs'\n"
WITHIN = "from megatron.core.datasets.helpers_cpp import build_mapping\n\ndef run():\n    return build_mapping\n"


def write_megatron(folder: Path, version: str = "0, 16, 1") -> Path:
    major, minor, patch = version.split(", ")
    files = {
        "core/__init__.py": "",
        "core/package_info.py": f"MAJOR = {major}\nMINOR = {minor}\nPATCH = {patch}\nPRE_RELEASE = ''\n",
        "core/datasets/__init__.py": "",
        "core/datasets/megatron_tokenizer.py": TOKENIZER,
        "core/datasets/helpers_cpp.py": HELPERS,
        "core/uses.py": WITHIN,
    }
    for name, text in files.items():
        path = folder / "megatron" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.fixture
def own_imports(monkeypatch):
    """Removes Megatron from `sys.modules`, and restores it after the test."""
    kept = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "megatron"}
    for name in kept:
        del sys.modules[name]
    path = list(sys.path)
    yield
    uninstall()
    sys.path[:] = path
    for name in [name for name in sys.modules if name.partition(".")[0] in ("megatron", "train_here")]:
        del sys.modules[name]
    sys.modules.update(kept)
    importlib.invalidate_caches()


@pytest.fixture
def megatron_here(own_imports, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(write_megatron(tmp_path))
    return tmp_path


@pytest.fixture
def no_megatron(own_imports, monkeypatch):
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if not (Path(entry) / "megatron").is_dir()])
    importlib.invalidate_caches()
