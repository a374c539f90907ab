"""Texts of runs, and what is wrong with others."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest
from hypothesis import strategies as st

from tokenloom.errors import ConfigError
from tokenloom.run.settings import SourceSettings, StageSettings, parse_run

RUN = """\
order = 1
seed = 1234
tokenizer = "tokenizer.json"
documents = "shuffled"
windows = "concat"
mix = "random"
mixing_block = 1024
dataset = "gpt"

[samples]
eod_mask_loss = false

[sources]
web = { data = "data/web/*_document", holdout = "0.1%" }
code = { data = ["s3://corpus/code/*"], max_passes = 4 }
wiki = "data/wiki"

[[stages]]
name = "main"
sequence_length = 4096
tokens = "900B"
weights = { web = 8, code = 2, wiki = 0 }
on_exhausted = "stop"

[[stages]]
samples = 1_000
weights = { web = 0.1, wiki = 0.3 }

[[stages]]
name = "long"
sequence_length = 131072
passes = { web = 1, code = 2.5 }
on_exhausted = "repeat"

[[stages]]
weights = { wiki = 1 }

[[denied]]
documents = "takedown.txt"
from = 120000

[[denied]]
documents = ["web:12", "code:3"]
"""

SMALL = """\
order = 1
seed = 1
[sources]
web = "web"
[[stages]]
sequence_length = 8
weights = { web = 1 }
"""


def error_of(text: str, path: str = "run.toml") -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        parse_run(text, path=path)
    return caught.value


NAMES = st.lists(st.text("ab c.é\"'#=", min_size=1, max_size=4).filter(lambda name: name == name.strip()), unique=True)


@st.composite
def runs(draw):
    """Draws the text of a run, and what was meant."""
    names = draw(NAMES.filter(bool))
    seed, start = draw(st.integers(0, 2**63 - 1)), draw(st.integers(0, 2**40))
    lines = ["order = 1", f"seed = {seed}", "[sources]"]
    sources = []
    for name in names:
        data = tuple(f"data/{names.index(name)}_{part}" for part in range(draw(st.integers(1, 2))))
        passes, share = draw(st.none() | st.integers(1, 9)), draw(st.none() | st.integers(1, 500))
        holdout = None if share is None else Fraction(share, 1000)
        sources.append(SourceSettings(name=name, data=data, max_passes=passes, holdout=holdout))
        keys = [f"data = {json.dumps(data)}"]
        keys += [] if passes is None else [f"max_passes = {passes}"]
        keys += [] if share is None else [f'holdout = "{share / 10}%"']
        lines.append(f"{json.dumps(name, ensure_ascii=False)} = {{ {', '.join(keys)} }}")
    stages = []
    count = draw(st.integers(1, 4))
    for number in range(count):
        chosen = [name for name in names if draw(st.booleans())] or names[:1]
        shares = tuple((name, Fraction(draw(st.integers(1, 1000)), 100)) for name in chosen)
        kinds = ["tokens", "samples", "passes"] + ([None] if number == count - 1 else [])
        kind, size, length = draw(st.sampled_from(kinds)), draw(st.integers(100, 10**6)), draw(st.integers(1, 100))
        stage = {"tokens": {"tokens": size}, "samples": {"samples": size}}.get(kind, {})
        stage |= {"passes" if kind == "passes" else "weights": shares}
        stages.append(StageSettings(name=f"stage {number + 1}", sequence_length=length, **stage))
        lines += ["[[stages]]", f"sequence_length = {length}"]
        lines += [f'{kind} = "{size / 1000}K"'] if kind in ("tokens", "samples") else []
        values = ", ".join(f"{json.dumps(name, ensure_ascii=False)} = {float(share)}" for name, share in shares)
        lines.append(f"{'passes' if kind == 'passes' else 'weights'} = {{ {values} }}")
    document = json.dumps(f"{names[0]}:7", ensure_ascii=False)
    lines += ["[[denied]]", f"documents = [{document}]", f"from = {start}"]
    return "\n".join(lines), seed, tuple(sources), tuple(stages), start
