"""The README's example of streaming from a bucket, run against a bucket."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.preprocess.corpus import byte_level_json
from tests.support import write_corpus

ROOT = Path(__file__).parent.parent


def test_the_example_streams_a_blend(bucket, tmp_path, rng):
    section = (ROOT / "README.md").read_text().split("### From a bucket")[1]
    code = re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)[0]
    for key in ("web/a_document", "web/b_document", "books_document"):
        prefix = write_corpus(tmp_path / "local", [rng.integers(0, 900, size=3000) for _ in range(4)])
        bucket.put_pair(prefix, key)
    (tmp_path / "tokenizer.json").write_text(byte_level_json(), encoding="utf-8")
    stand_ins = {
        "s3://corpus": f"s3://{bucket.name}",
        "/local": str(tmp_path),
        "100_000": "4",
        "2 << 30": "2 << 20",
        "num_workers=4": "num_workers=1",
        "len(train), 0, 8": "len(train), 0, 2",
    }
    for text, stand_in in stand_ins.items():
        assert text in code
        code = code.replace(text, stand_in)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    for key in ("web/a_document", "web/b_document", "books_document"):
        assert f"s3://{bucket.name}/{key}.bin': SourceStatistics(bytes_used=" in done.stdout
