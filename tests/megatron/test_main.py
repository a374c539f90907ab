"""`python -m tokenloom.megatron SCRIPT`."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from tests.indexed.pairs import pair_bytes
from tests.megatron.conftest import write_megatron
from tests.support import write_corpus

from tokenloom.megatron.__main__ import main


def run(*arguments: str, folder, check: bool = True) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=check)


def ours(*arguments: str, folder, check: bool = True) -> subprocess.CompletedProcess[str]:
    return run("-m", "tokenloom.megatron", *arguments, folder=folder, check=check)


def test_wrong_arguments(own_imports, tmp_path, monkeypatch):
    write_megatron(tmp_path, "0, 12, 0")
    (tmp_path / "old.py").write_text("")
    monkeypatch.chdir(tmp_path)
    for arguments, end in (
        ([], "no script given"),
        (["-x", "y.py"], "no script given, got option -x"),
        (["--report", "nowhere.py"], "no file `nowhere.py`"),
        (
            ["tools/preprocess_data.py", "--workers", "3", "--partitions", "2"],
            "--workers: must be a multiple of --partitions 2, got 3",
        ),
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
