"""`tokenloom.megatron.install` and `uninstall`: what imports give, what was there before, and all the wrong moments."""

from __future__ import annotations

import importlib
import importlib.util
import multiprocessing.spawn
import pickle
import subprocess
import sys
import threading
from importlib import import_module

import pytest
from tests.megatron.conftest import write_megatron

import tokenloom.megatron
from tokenloom.errors import ConfigError
from tokenloom.megatron import installation
from tokenloom.megatron.core.datasets import helpers_cpp, megatron_tokenizer

TOKENIZER = "megatron.core.datasets.megatron_tokenizer"
HELPERS = "megatron.core.datasets.helpers_cpp"


def test_names_of_megatron_give_our_modules(megatron_here):
    report = tokenloom.megatron.install()
    assert str(report).splitlines()[0] == "tokenloom.megatron is installed; megatron-core: 0.16.1"
    assert report.loaded == report.replaced == ()
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
def test_the_package_gives_our_classes_by_name_while_installed(megatron_here, imported):
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


def test_a_name_that_the_package_has_stays_its_own(megatron_here):
    (megatron_here / "megatron/core/datasets/__init__.py").write_text("GPTDataset = 'theirs'")
    tokenloom.megatron.install()
    assert import_module("megatron.core.datasets").GPTDataset == "theirs"


def test_without_megatron_the_package_gives_our_classes(no_megatron):
    tokenloom.megatron.install()
    exec(EXAMPLE)


def test_uninstalling_gives_megatron_its_own_back(megatron_here):
    before = (list(sys.meta_path), multiprocessing.spawn.get_preparation_data)
    tokenloom.megatron.install()
    assert import_module(HELPERS) is helpers_cpp
    tokenloom.megatron.uninstall()
    assert (sys.meta_path, multiprocessing.spawn.get_preparation_data) == before
    assert not hasattr(sys.modules["megatron.core.datasets"], "helpers_cpp")
    assert import_module(HELPERS).build_mapping() == "theirs"
    assert not tokenloom.megatron.report().is_installed
    tokenloom.megatron.uninstall()
    assert import_module(HELPERS).build_mapping() == "theirs"


def test_a_second_call_does_nothing(megatron_here):
    first = tokenloom.megatron.install()
    assert tokenloom.megatron.install(late=True) == first
    assert [type(finder).__name__ for finder in sys.meta_path].count("_Installed") == 1
    tokenloom.megatron.uninstall()
    assert import_module(HELPERS) is not helpers_cpp


def test_what_only_megatron_has_used_is_replaced(megatron_here):
    theirs = import_module(HELPERS)
    uses = import_module("megatron.core.uses")
    original = uses.build_mapping
    report = tokenloom.megatron.install()
    assert report.replaced == report.loaded == (HELPERS,)
    assert report.rebound == ("megatron.core.uses.build_mapping",)
    assert uses.run() is helpers_cpp.build_mapping
    assert import_module("megatron.core.datasets").helpers_cpp is sys.modules[HELPERS] is helpers_cpp
    assert f"{HELPERS} is tokenloom.{HELPERS} (in the place of one that had been imported)" in str(report)
    tokenloom.megatron.uninstall()
    assert uses.run() is original
    assert import_module("megatron.core.datasets").helpers_cpp is sys.modules[HELPERS] is theirs


PROGRAM = f"""
import {HELPERS} as helpers
from {TOKENIZER} import MegatronLegacyTokenizer as Base, OnlyHere

class Mine(Base):
    pass
"""


def test_a_program_that_was_earlier_is_refused_unless_told(megatron_here):
    (megatron_here / "train_here.py").write_text(PROGRAM)
    train = import_module("train_here")
    before = dict(vars(train))
    with pytest.raises(ConfigError) as refused:
        tokenloom.megatron.install()
    assert str(refused.value).startswith(
        "Megatron's data modules were imported before, and are in use: `train_here.helpers`, `train_here.Base`, "
        "`train_here.OnlyHere`, class `train_here.Mine`\nhint: call `tokenloom.megatron.install()` before"
    )
    assert vars(train) == before
    assert not tokenloom.megatron.report().is_installed
    report = tokenloom.megatron.install(late=True)
    assert train.helpers is helpers_cpp
    assert train.Base is megatron_tokenizer.MegatronLegacyTokenizer
    assert train.OnlyHere is before["OnlyHere"]
    assert report.left == ("train_here.OnlyHere", "train_here.Mine")
    assert "train_here.Mine is still Megatron's" in str(report)
    train.helpers = "changed since"
    tokenloom.megatron.uninstall()
    assert vars(train) == {**before, "helpers": "changed since"}


def test_versions_are_refused_unless_compared_or_told(own_imports, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(write_megatron(tmp_path, "0, 17, 0"))
    expected = "expected megatron-core 0.16.1, 0.19.2, 0.20.0, which tokenloom is compared with, found 0.17.0"
    with pytest.raises(ConfigError, match=expected):
        tokenloom.megatron.install()
    report = tokenloom.megatron.install(unchecked=True)
    assert "megatron-core: 0.17.0, which tokenloom was not compared with" in str(report)
    assert import_module(HELPERS) is helpers_cpp
    tokenloom.megatron.uninstall()
    (tmp_path / "megatron" / "core" / "package_info.py").unlink()
    monkeypatch.setattr("tokenloom.megatron.versions._listed_version", lambda: None)
    monkeypatch.setattr("tokenloom.megatron.versions._written_version", lambda path: None)
    with pytest.raises(ConfigError, match="found one that does not say its version"):
        tokenloom.megatron.install()


def test_without_megatron_its_data_modules_are_there(no_megatron):
    report = tokenloom.megatron.install()
    assert "megatron-core: none is installed" in str(report)
    assert import_module(HELPERS) is helpers_cpp
    assert import_module("megatron.core.datasets").helpers_cpp is helpers_cpp
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'megatron.core.parallel_state'"):
        import_module("megatron.core.parallel_state")
    assert "not installed" in import_module("megatron.core").__doc__
    tokenloom.megatron.uninstall()
    assert [name for name in sys.modules if name.partition(".")[0] == "megatron"] == []
    with pytest.raises(ModuleNotFoundError, match="No module named 'megatron'"):
        import_module(HELPERS)


def test_reloading_keeps_what_is_installed(megatron_here):
    tokenloom.megatron.install()
    module = import_module(TOKENIZER)
    assert importlib.reload(module) is module is sys.modules[TOKENIZER] is megatron_tokenizer
    del sys.modules[TOKENIZER]
    assert import_module(TOKENIZER) is module
    importlib.reload(installation)
    assert tokenloom.megatron.report().is_installed
    tokenloom.megatron.install()
    assert [type(finder).__name__ for finder in sys.meta_path].count("_Installed") == 1
    installation.uninstall()
    assert import_module(TOKENIZER) is not module


def test_threads_import_and_install_at_once(megatron_here):
    barrier = threading.Barrier(8)
    found = []

    def work() -> None:
        barrier.wait()
        tokenloom.megatron.install()
        found.append(import_module(HELPERS))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [helpers_cpp] * 8
    assert [type(finder).__name__ for finder in sys.meta_path].count("_Installed") == 1


def test_an_import_in_progress_is_waited_for_by_whoever_installs(megatron_here):
    module = import_module(HELPERS)
    module.__spec__._initializing = True
    with pytest.raises(ConfigError, match=f"expected no import .* in progress, found `{HELPERS}`"):
        tokenloom.megatron.install()


def test_a_module_of_ours_that_cannot_be_imported_leaves_everything_as_it_was(megatron_here, monkeypatch):
    theirs = import_module(HELPERS)
    monkeypatch.setattr(installation, "import_module", lambda name: import_module("no_such_module"))
    before = list(sys.meta_path)
    with pytest.raises(ModuleNotFoundError):
        tokenloom.megatron.install()
    assert sys.meta_path == before
    assert sys.modules[HELPERS] is theirs


def test_installing_imports_neither_numpy_nor_torch():
    script = """
import sys, tokenloom.megatron
report = tokenloom.megatron.install(unchecked=True)
assert not {"numpy", "torch", "megatron.core"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", script], check=True)
