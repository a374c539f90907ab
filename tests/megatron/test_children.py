"""`tokenloom.megatron.children`: processes of a program have our modules too."""

from __future__ import annotations

from tests.megatron.conftest import write_megatron
from tests.megatron.programs import ours

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


def test_children_have_our_modules_too(tmp_path):
    write_megatron(tmp_path)
    (tmp_path / "train.py").write_text(CHILDREN)
    module = "tokenloom.megatron.core.datasets.megatron_tokenizer"
    done = ours("--report", "train.py", folder=tmp_path)
    assert done.stdout == f"fork {module}\nspawn {module}\nforkserver {module}\n"
    assert "megatron.core.datasets.utils is tokenloom.megatron.core.datasets.utils" in done.stderr
