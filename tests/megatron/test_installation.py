"""`tokenloom.megatron.install`, `python -m tokenloom.megatron SCRIPT`, and commands in place of Megatron's tools."""

import importlib
import importlib.util
import json
import multiprocessing.spawn
import os
import pickle
import subprocess
import sys
from functools import partial
from importlib import import_module
from pathlib import Path

import pytest
from tests.indexed.pairs import pair_bytes
from tests.support import write_corpus

import tokenloom.megatron
from tokenloom.cli import build_parser
from tokenloom.errors import ConfigError
from tokenloom.megatron.__main__ import _CACHE_FLAGS, main, tool_command
from tokenloom.megatron.core.datasets import helpers_cpp, megatron_tokenizer
from tokenloom.megatron.installation import (
    CHECKED,
    NEWEST,
    installed_version,
    reference_version,
    uninstall,
    version_numbers,
)

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


TOKENIZER_MODULE = "megatron.core.datasets.megatron_tokenizer"
HELPERS_MODULE = "megatron.core.datasets.helpers_cpp"


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
    assert tokenloom.megatron.report().loaded == (HELPERS_MODULE, TOKENIZER_MODULE)
    assert megatron_tokenizer.__spec__.name == "tokenloom.megatron.core.datasets.megatron_tokenizer"
    assert importlib.util.find_spec(TOKENIZER_MODULE) is megatron_tokenizer.__spec__
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
    assert import_module(HELPERS_MODULE) is helpers_cpp
    tokenloom.megatron.uninstall()
    assert (sys.meta_path, multiprocessing.spawn.get_preparation_data) == before
    assert not hasattr(sys.modules["megatron.core.datasets"], "helpers_cpp")
    assert import_module(HELPERS_MODULE).build_mapping() == "theirs"
    assert not tokenloom.megatron.report().is_installed
    tokenloom.megatron.uninstall()
    assert import_module(HELPERS_MODULE).build_mapping() == "theirs"


def test_megatrons_own_modules_are_already_imported(megatron_here):
    uses = import_module("megatron.core.uses")
    before = list(sys.meta_path)
    with pytest.raises(ConfigError) as refused:
        tokenloom.megatron.install()
    assert str(refused.value) == (
        f"Megatron's own data modules are already imported: {HELPERS_MODULE}\n"
        "hint: call `tokenloom.megatron.install()` earlier, or run `python -m tokenloom.megatron SCRIPT`"
    )
    assert sys.meta_path == before
    assert uses.run()() == "theirs"
    assert not tokenloom.megatron.report().is_installed


def test_untested_versions(own_imports, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(write_megatron(tmp_path, "0, 17, 0"))
    expected = "tokenloom was not tested against megatron-core 0.17.0\nhint: use megatron-core 0.16.1 or 0.19.2 or"
    with pytest.raises(ConfigError, match=expected):
        tokenloom.megatron.install()
    report = tokenloom.megatron.install(unchecked=True)
    assert "megatron-core: 0.17.0 (not tested with tokenloom)" in str(report)
    assert import_module(HELPERS_MODULE) is helpers_cpp
    tokenloom.megatron.uninstall()
    (tmp_path / "megatron" / "core" / "package_info.py").unlink()
    monkeypatch.setattr("tokenloom.megatron.installation._version_in", lambda path: "")
    with pytest.raises(ConfigError, match="not tested against megatron-core of unknown version"):
        tokenloom.megatron.install()


def test_without_megatron(no_megatron):
    assert (installed_version(), reference_version()) == (None, NEWEST)
    report = tokenloom.megatron.install()
    assert "megatron-core: not installed" in str(report)
    assert import_module(HELPERS_MODULE) is helpers_cpp
    assert import_module("megatron.core.datasets").helpers_cpp is helpers_cpp
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'megatron.core.parallel_state'"):
        import_module("megatron.core.parallel_state")
    assert "placeholder" in import_module("megatron.core").__doc__
    tokenloom.megatron.uninstall()
    assert [name for name in sys.modules if name.partition(".")[0] == "megatron"] == []
    with pytest.raises(ModuleNotFoundError, match="No module named 'megatron'"):
        import_module(HELPERS_MODULE)


def test_install_imports_neither_numpy_nor_torch():
    script = "import sys, tokenloom.megatron; tokenloom.megatron.install(unchecked=True); "
    script += 'assert not {"numpy", "torch", "megatron.core"} & set(sys.modules)'
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


def run(*arguments: str, folder, check: bool = True) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=check)


ours = partial(run, "-m", "tokenloom.megatron")


PARTS = ("--workers", "3", "--partitions", "2")


def test_wrong_arguments(own_imports, tmp_path, monkeypatch):
    write_megatron(tmp_path, "0, 12, 0")
    (tmp_path / "old.py").write_text("")
    monkeypatch.chdir(tmp_path)
    for arguments, end in (
        ([], "no script given"),
        (["-x", "y.py"], "no script given, got option -x"),
        (["--report", "nowhere.py"], "no file `nowhere.py`"),
        (["tools/preprocess_data.py", *PARTS], "--workers: must be a multiple of --partitions 2, got 3"),
        (["old.py"], "or pass `install(unchecked=True)` or `--unchecked`"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert str(ended.value).endswith(end)


def test_exit_codes_and_tracebacks(tmp_path):
    (tmp_path / "ends.py").write_text("import sys; sys.exit(7)")
    (tmp_path / "fails.py").write_text("x = 1\nraise KeyError('here')")
    assert ours("ends.py", folder=tmp_path, check=False).returncode == 7
    assert 'fails.py", line 2, in <module>\n' in ours("fails.py", folder=tmp_path, check=False).stderr
    assert ours("--help", folder=tmp_path).stdout.startswith("usage: python -m tokenloom.megatron")


def test_data_tools_are_replaced(tmp_path):
    (tmp_path / "parts").mkdir()
    prefix = write_corpus(tmp_path / "parts" / "a", [[1, 2], [3]])
    done = ours("tools/merge_datasets.py", "--input", "parts", "--output-prefix", "all", folder=tmp_path)
    assert done.stderr == "tools/merge_datasets.py: tokenloom merge --input parts --output-prefix all\n"
    assert pair_bytes(tmp_path / "all") == pair_bytes(prefix)
    (tmp_path / "merge_datasets.py").write_text("print('as it is')")
    assert ours("--as-is", "merge_datasets.py", folder=tmp_path).stdout == "as it is\n"


FACTS = """
import json, sys
import __main__
main = vars(__main__)
names = ("__name__", "__file__", "__spec__", "__package__", "__builtins__", "__doc__", "__cached__")
facts = {name: str(main[name]) for name in names}
facts |= {"argv": sys.argv, "first": sys.path[0], "is_main": __main__ is sys.modules["__main__"], "beside": __name__}
import beside
facts["beside"] = beside.__file__
print(json.dumps(facts))
"""


def test_a_script_runs_as_with_python(tmp_path):
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    (scripts / "facts.py").write_text(FACTS)
    (scripts / "beside.py").write_text("")
    (tmp_path / "link.py").symlink_to(scripts / "facts.py")
    for script in ("scripts/facts.py", "link.py"):
        arguments = (script, "--sft", "-m", "--report")
        assert ours(*arguments, folder=tmp_path).stdout == run(*arguments, folder=tmp_path).stdout
    arguments = ("-m", "facts", "a")
    assert json.loads(ours(*arguments, folder=scripts).stdout)["argv"] == [str(scripts / "facts.py"), "a"]


CHILDREN = """
import multiprocessing, os, sys
from megatron.core.datasets.megatron_tokenizer import MegatronLegacyTokenizer

class Mine(MegatronLegacyTokenizer):
    pass

def base(_):
    return Mine.__mro__[1].__module__

if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            print(method, *pool.map(base, [0]))
"""


def test_child_processes_have_our_modules(tmp_path):
    write_megatron(tmp_path)
    (tmp_path / "train.py").write_text(CHILDREN)
    module = "tokenloom.megatron.core.datasets.megatron_tokenizer"
    done = ours("--report", "train.py", folder=tmp_path)
    assert done.stdout == f"fork {module}\nspawn {module}\nforkserver {module}\n"
    assert "megatron.core.datasets.utils -> tokenloom.megatron.core.datasets.utils" in done.stderr


COMMON = "--input a.jsonl --output-prefix p"
GPT2 = f"{COMMON} --tokenizer-type GPT2BPETokenizer --vocab-file v --merge-file m"
CASES = [
    ("tools/preprocess_data.py", f"{GPT2} --workers 4", f"preprocess {GPT2} --partitions 1 --workers 4"),
    ("preprocess_data.py", f"{COMMON} --workers=64", f"preprocess {COMMON} --partitions 8 --workers 64"),
    ("preprocess_data.py", f"--workers 4 {COMMON} --partitions 4", f"preprocess {COMMON} --partitions 4 --workers 4"),
    ("preprocess_data.py", COMMON, f"preprocess {COMMON}"),
    ("preprocess_data_fast.py", f"{COMMON} --use-gigatoken", f"preprocess {COMMON} --use-gigatoken"),
    (
        "preprocess_data_for_megatron.py",
        f"{COMMON} --tokenizer-library=sentencepiece --tokenizer-model t --dataset-impl mmap",
        f"preprocess {COMMON} --tokenizer-model t --dataset-impl mmap --tokenizer-type SentencePieceTokenizer",
    ),
    (
        "preprocess_data_for_megatron.py",
        f"{COMMON} --tokenizer-library huggingface --tokenizer-type folder",
        f"preprocess {COMMON} --tokenizer-type HuggingFaceTokenizer --tokenizer-model folder",
    ),
    (
        "build_indexed_dataset.py",
        "--in my.txt --out=my_gpt_data --tokenizer t",
        "preprocess --input my.txt --output-prefix=my_gpt_data --tokenizer t --input-format text-lines --exact-prefix",
    ),
    (
        "preprocess_mmdata.py",
        f"{COMMON} --input-image i --pad-length 9 --append-eod",
        f"preprocess-multimodal {COMMON} --input-image i --pad-length 9 --append-eod",
    ),
    ("preprocess_mmdata.py", f"{COMMON} --pad-length 9", f"preprocess-multimodal {COMMON}"),
    ("merge_datasets.py", "--input d --output-prefix p --multimodal", "merge --input d --output-prefix p --multimodal"),
    ("build_sequences_per_dataset.py", "--train-data-path 1 a", "sequences-per-dataset --train-data-path 1 a"),
    (
        "prepare_cache.py",
        "--num-layers 12 --data-path 1 a --seq-length 8 --bf16 --lr 1e-4 --data-cache-path c --tokenizer t --seed 3",
        "prepare-cache --data-path 1 a --seq-length 8 --data-cache-path c --tokenizer t --seed 3",
    ),
]


@pytest.mark.parametrize(("script", "argv", "expected"), CASES)
def test_commands_of_tools(script, argv, expected):
    found = tool_command(script, argv.split())
    assert found == expected.split()
    needed = ["--tokenizer", "byte"] if found[0].startswith("preprocess") else []
    assert build_parser(found[:1]).parse_args([*found, *needed]).run is not None


def test_other_programs_and_notes():
    assert tool_command("pretrain_gpt.py", ["--data-path", "a"]) is None
    assert tool_command("tools/preprocess_data_nmt.py", []) is None
    assert tool_command("tools/prepare_cache.py", [], has_trainer=True) is None
    notes: list[str] = []
    tool_command("prepare_cache.py", ["--num-layers", "12", "--seed", "3", "--bf16"], note=notes.append)
    tool_command("preprocess_mmdata.py", ["--pad-length", "3"], note=notes.append)
    assert notes[0] == "arguments without effect on the index cache: --num-layers 12 --bf16"
    assert notes[1].startswith("a run uses this cache only with this tokenizer class")
    assert notes[2] == "--pad-length has no effect without --append-eod, as in Megatron's tool"


def test_options_of_tools():
    with pytest.raises(ConfigError, match="unknown --tokenizer-library 'tabular'"):
        tool_command("preprocess_data_for_megatron.py", ["--tokenizer-library", "tabular"])
    commands = next(each for each in build_parser(["prepare-cache"])._actions if isinstance(each.choices, dict))
    known = {name for action in commands.choices["prepare-cache"]._actions for name in action.option_strings}
    assert {*_CACHE_FLAGS} <= known
