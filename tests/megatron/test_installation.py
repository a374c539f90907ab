"""`tokenloom.megatron.install` and `uninstall`."""

from __future__ import annotations

import importlib
import importlib.util
import multiprocessing.spawn
import pickle
import subprocess
import sys
from importlib import import_module

import pytest
from tests.megatron.conftest import write_megatron

import tokenloom.megatron
from tokenloom.errors import ConfigError
from tokenloom.megatron.core.datasets import helpers_cpp, megatron_tokenizer
from tokenloom.megatron.installation import CHECKED, NEWEST, installed_version, reference_version, version_numbers

TOKENIZER = "megatron.core.datasets.megatron_tokenizer"
HELPERS = "megatron.core.datasets.helpers_cpp"


def test_megatrons_names_are_our_modules(megatron_here):
    report = tokenloom.megatron.install()
    assert str(report).splitlines()[0] == "tokenloom.megatron is installed; megatron-core: 0.16.1"
    assert report.loaded == ()
    from megatron.core.datasets import helpers_cpp as taken
    from megatron.core.datasets.megatron_tokenizer import MegatronTokenizer

    assert taken is helpers_cpp
    assert MegatronTokenizer is megatron_tokenizer.MegatronTokenizer
    assert import_module("megatron.core.uses").run() is helpers_cpp.build_mapping
    assert import_module("megatron.core").datasets.megatron_tokenizer is megatron_tokenizer
    assert tokenloom.megatron.report().loaded == (HELPERS, TOKENIZER)
    assert megatron_tokenizer.__spec__.name == "tokenloom.megatron.core.datasets.megatron_tokenizer"
    assert importlib.util.find_spec(TOKENIZER) is megatron_tokenizer.__spec__
    assert pickle.loads(pickle.dumps(MegatronTokenizer)) is MegatronTokenizer


EXAMPLE = "from megatron.core.datasets import BlendedMegatronDatasetBuilder, GPTDataset, GPTDatasetConfig"


@pytest.mark.parametrize("imported", [True, False])
def test_the_package_exports_our_classes_while_installed(megatron_here, imported):
    if imported:
        import_module("megatron.core.datasets")
    tokenloom.megatron.install()
    names: dict[str, type] = {}
    exec(EXAMPLE, names)
    assert names["GPTDataset"] is import_module("megatron.core.datasets.gpt_dataset").GPTDataset
    assert import_module("megatron.core.datasets").__file__ == f"{megatron_here}/megatron/core/datasets/__init__.py"
    with pytest.raises(ImportError, match="cannot import name 'gpt_datasets'"):
        exec("from megatron.core.datasets import gpt_datasets")
    tokenloom.megatron.uninstall()
    with pytest.raises(ImportError, match="cannot import name 'BlendedMegatronDatasetBuilder'"):
        exec(EXAMPLE)


def test_uninstall(megatron_here):
    before = (list(sys.meta_path), multiprocessing.spawn.get_preparation_data)
    assert tokenloom.megatron.install() == tokenloom.megatron.install()
    assert import_module(HELPERS) is helpers_cpp
    tokenloom.megatron.uninstall()
    assert (sys.meta_path, multiprocessing.spawn.get_preparation_data) == before
    assert not hasattr(sys.modules["megatron.core.datasets"], "helpers_cpp")
    assert import_module(HELPERS).build_mapping() == "theirs"
    assert not tokenloom.megatron.report().is_installed
    tokenloom.megatron.uninstall()
    assert import_module(HELPERS).build_mapping() == "theirs"


def test_megatrons_own_modules_are_already_imported(megatron_here):
    uses = import_module("megatron.core.uses")
    before = list(sys.meta_path)
    with pytest.raises(ConfigError) as refused:
        tokenloom.megatron.install()
    assert str(refused.value) == (
        f"Megatron's own data modules are already imported: {HELPERS}\n"
        "hint: call `tokenloom.megatron.install()` earlier, or run `python -m tokenloom.megatron SCRIPT`"
    )
    assert sys.meta_path == before
    assert uses.run()() == "theirs"
    assert not tokenloom.megatron.report().is_installed


def test_untested_versions(own_imports, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(write_megatron(tmp_path, "0, 17, 0"))
    expected = "tokenloom was not tested against megatron-core 0.17.0\nhint: install 0.16.1 or 0.19.2 or 0.20.0"
    with pytest.raises(ConfigError, match=expected):
        tokenloom.megatron.install()
    report = tokenloom.megatron.install(unchecked=True)
    assert "megatron-core: 0.17.0 (not tested with tokenloom)" in str(report)
    assert import_module(HELPERS) is helpers_cpp
    tokenloom.megatron.uninstall()
    (tmp_path / "megatron" / "core" / "package_info.py").unlink()
    monkeypatch.setattr("tokenloom.megatron.installation._version_in", lambda path: "")
    with pytest.raises(ConfigError, match="not tested against megatron-core of unknown version"):
        tokenloom.megatron.install()


def test_without_megatron(no_megatron):
    assert (installed_version(), reference_version()) == (None, NEWEST)
    report = tokenloom.megatron.install()
    assert "megatron-core: not installed" in str(report)
    assert import_module(HELPERS) is helpers_cpp
    assert import_module("megatron.core.datasets").helpers_cpp is helpers_cpp
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'megatron.core.parallel_state'"):
        import_module("megatron.core.parallel_state")
    assert "placeholder" in import_module("megatron.core").__doc__
    tokenloom.megatron.uninstall()
    assert [name for name in sys.modules if name.partition(".")[0] == "megatron"] == []
    with pytest.raises(ModuleNotFoundError, match="No module named 'megatron'"):
        import_module(HELPERS)


def test_install_imports_neither_numpy_nor_torch():
    script = (
        "import sys, tokenloom.megatron; tokenloom.megatron.install(unchecked=True); "
        'assert not {"numpy", "torch", "megatron.core"} & set(sys.modules)'
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("0.16.1", (0, 16, 1)), ("0.19.2rc1", (0, 19, 2)), ("0.20", (0, 20)), ("0.20.0+abc", (0, 20, 0)), ("dev", ())],
)
def test_versions_are_numbers(text, numbers):
    assert version_numbers(text) == numbers
    assert version_numbers(CHECKED[-1]) >= NEWEST


def test_a_checkout_is_read_without_importing_it(own_imports, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(write_megatron(tmp_path, "0, 19, 1"))
    assert (installed_version(), reference_version()) == ("0.19.1", (0, 19, 1))
    assert "megatron.core" not in sys.modules
