"""Reports: targets, sections, pages, charts as data and as pictures, and the command."""

import html as markup
import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from tests.corpus.jobs import preprocess
from tests.corpus.shard_reports import key_of, write_report
from tests.inspect.targets import TEXTS, write_run
from tests.inspect.targets import write_pair as write_texts
from tests.run.audit.ledgers import CHANGED, DENIED, Words
from tests.run.folders import HEAD, write_data, write_toml
from tests.run.small_runs import lock, pair, segment, source
from tests.support import write_corpus, write_sentences

import tokenloom_look
from tokenloom import ConfigError, OutputExistsError, load_tokenizer
from tokenloom.cli import main
from tokenloom.errors import DatasetFormatError, DatasetNotFoundError, InputError
from tokenloom.loading.losses import JsonLinesWriter
from tokenloom.loading.thread_loader import DataWait
from tokenloom.order.packs import best_fit_report
from tokenloom.run.lock import LockedDenial, LockedSource
from tokenloom.run.run import Run
from tokenloom_look.report.blend_section import blend_section
from tokenloom_look.report.contamination_section import contamination_section
from tokenloom_look.report.documents_section import documents_section
from tokenloom_look.report.input_section import input_section
from tokenloom_look.report.job_section import job_section
from tokenloom_look.report.ledger_section import ledger_section
from tokenloom_look.report.made_by_section import made_by_section
from tokenloom_look.report.packing_section import packing_section
from tokenloom_look.report.page import page
from tokenloom_look.report.run_sections import held_out_section, passes_section, stages_section
from tokenloom_look.report.samples_section import samples_section, shown_documents_section
from tokenloom_look.report.section import KINDS, Chart, Mark, ReportOptions, Section, Series, kept_points
from tokenloom_look.report.sections import ListedSection, make_section
from tokenloom_look.report.statistics_section import statistics_section
from tokenloom_look.report.tokens_section import tokens_section
from tokenloom_look.target import SampleSettings, Target, TargetKind, open_target


@pytest.fixture
def write_pair(tmp_path: Path) -> Callable[..., str]:
    """Writes a pair with documents of ids, or of that many tokens; returns its prefix."""

    def written(documents: Sequence[Sequence[int] | int], name: str = "corpus") -> str:
        texts = [[3] * document if isinstance(document, int) else document for document in documents]
        return write_corpus(tmp_path / name, texts, dtype=np.uint16)

    return written


@pytest.fixture
def make_corpus(tmp_path: Path) -> Callable[..., str]:
    """Preprocesses good and bad records of a file with a hostile name; returns the prefix of the pair."""

    def made(name: str = "in", *, append_eod: bool = True) -> str:
        lines = [json.dumps({"text": f"text {number}"}) for number in range(8)]
        lines += ["", '{"no": 1}', '{"<b>": 2}', "{\x1b", lines[0]]
        (tmp_path / f"{name}<i>.jsonl").write_text("\n".join(lines) + "\n")
        settings = {"skip_bad_records": True, "drop_duplicates": True, "append_eod": append_eod, "num_workers": 1}
        preprocess(tmp_path / f"{name}<i>.jsonl", tmp_path / name, load_tokenizer("byte"), **settings)
        return f"{tmp_path}/{name}_text_document"

    return made


def words_of(html: str) -> str:
    """Returns the text of HTML, with single spaces."""
    return markup.unescape(re.sub(r"\s+", " ", re.sub("<[^>]*>", " ", html)).strip())


def opened(*words: str, tokenizer: str | None = None, length: int = 8) -> Target:
    return open_target(list(words), tokenizer=tokenizer, settings=SampleSettings(sequence_length=length))


def locked(sources, segments, **settings) -> Target:
    """Returns a run that has only a lock."""
    return Target(kind=TargetKind.run, name="run.toml", run=Run("run.toml", lock(sources, segments, **settings)))


def made(make, target: Target, **options) -> Section | None:
    section = make(target, ReportOptions(**options))
    if section is not None:
        section.as_json()
    return section


def test_a_pair_is_counted(write_pair):
    found = made(documents_section, opened(write_pair([1, 2, 0, 9])))
    words = words_of(found.html)
    assert "documents 4 tokens 12 bytes of tokens 24 dtype uint16 empty documents 1" in words
    assert "shortest non-empty document 1 token, document 0 longest document 9 tokens, document 3" in words
    assert "50% 1" in words
    assert [chart.id for chart in found.charts] == ["document-lengths", "tokens-by-length"]
    assert sum(found.charts[0].series[0].values) == 3
    assert sum(found.charts[1].series[0].values) == 12


def test_a_blend_is_counted_by_source(write_pair):
    one, two = write_pair([1, 2], "one"), write_pair([9], "two")
    found = made(documents_section, opened("30", one, "10", two))
    words = words_of(found.html)
    assert "2 sources, largest first source documents tokens share of tokens weight" in words
    assert words.index(f"{two} 1 9 75% 25%") < words.index(f"{one} 2 3 25% 75%")
    assert f"longest document 9 tokens, document 0 of {two}" in words


def test_odd_lengths_are_findings(write_pair):
    found = made(documents_section, opened(write_pair([10] * 50 + [0] * 5 + [400, *range(20, 65)])))
    assert found.findings == [
        "4.95% of the documents are empty.",
        "Document 55 alone has 14.3% of all tokens.",
        "49.5% of the documents have exactly 10 tokens: were they truncated?",
    ]
    assert made(documents_section, opened(write_pair(range(1, 200), "fine"))).findings == []


EOD = 256


def tokens_of(prefix: str) -> Section:
    return made(tokens_section, opened(prefix, tokenizer="byte"))


def test_tokens_are_shown_as_text(write_pair):
    section = tokens_of(write_pair([[*b"abcdefg <", EOD]] * 50))
    words = words_of(section.html)
    assert "tokens per byte of text 1.000" in words
    assert "end with EOD 100% of" in words
    assert "'<'" in words
    assert "<|endoftext|>" in words or "256" in words
    assert section.findings == []


def test_odd_tokens_are_findings(write_pair):
    findings = tokens_of(write_pair([[*b"aaaaaaaab"]] * 50)).findings
    assert re.fullmatch(r"None of \d+ documents in the sample end with EOD\.", findings[0])
    assert re.fullmatch(r"Token 97, 'a', is 8.*% of all tokens in the sample\.", findings[1])
    half = tokens_of(write_pair([[*b"abc"], [*b"abc", EOD]] * 50, "half")).findings
    assert re.fullmatch(r"Only [\d.]+% of \d+ documents in the sample end with EOD\.", half[0])


def test_provenance_is_shown(make_corpus):
    section = made(made_by_section, opened(make_corpus()))
    words = words_of(section.html)
    assert "tokenizer byte" in words
    assert "token before each document none token after each document" in words
    assert "drop_duplicates true" in words
    assert section.findings == []


def test_contradictions_are_findings(write_pair, make_corpus):
    bare, other = write_pair([1], "bare"), make_corpus("other", append_eod=False)
    section = made(made_by_section, opened(make_corpus(), other, bare))
    assert section.html.count("<h3>") == 2
    assert section.findings == [
        f"No manifest: tokenizer and integrity of {bare} are unknown.",
        "The data uses 2 different tokenizers, so equal ids have different meanings.",
        f"Documents of {other} do not end with an end-of-document token (EOD).",
    ]


def test_records_are_counted_by_outcome(make_corpus):
    section = made(input_section, opened(make_corpus()))
    words = words_of(section.html)
    assert "read 13 100% kept 8 61.5% rejected: unusable 3 23.1%" in words
    assert "blank: only white space 1 7.69%" in words
    assert "duplicates of kept records 1 7.69%" in words
    assert "empty" not in words
    assert "Reasons of 3 rejected records, most frequent first" in words
    assert words.index("no key 'text'") < words.index("not JSON")
    assert section.findings == [
        "23.1% of the input records were rejected: 3; most frequent reason: no key 'text'; found 'no'."
    ]


def ids_of(text: str) -> list[int]:
    return [*text.encode(), EOD]


def test_the_first_and_some_random_samples_are_shown(write_pair):
    target = opened(write_pair([ids_of("some words")] * 40), tokenizer="byte")
    words = words_of(made(samples_section, target, num_samples_shown=3).html)
    assert words.count("Position ") == 3
    assert "Position 0" in words
    assert "Shown with 8 tokens per sample and seed 1234." in words
    assert words == words_of(made(samples_section, target, num_samples_shown=3).html)


def test_the_odd_documents_are_shown(write_pair):
    texts = ["first", *["middle"] * 30, "the longest of all", "", "s"]
    target = opened(write_pair([ids_of(text) for text in texts]), tokenizer="byte")
    words = words_of(made(shown_documents_section, target).html)
    for heading in ("First document", "Longest document", "Shortest non-empty document", "the longest of all"):
        assert heading in words
    assert words.count("Random document") >= 3


def test_long_documents_and_samples_are_cut(write_pair):
    target = opened(write_pair([ids_of("x" * 5000)]), tokenizer="byte", length=4000)
    assert "4,701 more tokens are not shown." in made(shown_documents_section, target).html
    assert "3,401 more tokens are not shown." in made(samples_section, target).html
    assert len(made(samples_section, target).html) < 5000


WEB, CODE = source("web", 80), source("code", 2)
TWO = [segment(0, 60, [1, 0]), segment(60, 40, [3, 1], stage="decay")]


def test_stages_and_blend():
    found = made(stages_section, locked([WEB, CODE], TWO))
    words = words_of(found.html)
    assert "positions 100 tokens of samples 1,000" in words
    assert "main 0 60 10 1 web 100%" in words
    assert "decay 60 40 10 2 web 75%, code 25%" in words
    [blend] = found.charts
    assert (blend.kind, blend.y_format) == ("stacked", "share")
    assert blend.summary == "Shares of the largest sources: web 90%, code 10%."
    assert [(mark.x, mark.label) for mark in blend.marks] == [(60, "decay")]
    web, code = (np.array(each.values) for each in blend.series)
    xs = np.array(blend.x)
    np.testing.assert_allclose(web + code, 1)
    assert (code[xs < 60] == 0).all()
    assert code[xs > 60].mean() == pytest.approx(0.25, abs=0.05)
    assert xs.tolist() == sorted(xs.tolist())
    assert code[xs == 60].tolist() == [0, code[xs == 60][1]]  # a step, not a slope


def test_passes_and_repetition():
    found = made(passes_section, locked([WEB, CODE, source("idle", 3)], TWO))
    words = words_of(found.html)
    assert "web 1.12 1,602 900 700 2" in words
    assert "code 5.00 105 100 0 5" in words
    assert found.findings == ["code is read 5.0 times up to position 100.", "idle is in no sample of the run."]
    [passes] = found.charts
    assert [each.name for each in passes.series] == ["web", "code"]
    assert passes.series[1].values[-1] == 5
    assert passes.summary == "Passes at the end, most often read sources first: code 5.00, web 1.12."


def test_held_out_and_denied_documents():
    held = replace(pair(1000, name="a"), num_documents=1000, held_blocks=2, held_tokens=500)
    some = replace(pair(1000, name="b"), held_documents=7, held_tokens=90)
    denials = (LockedDenial(start=5, documents=((0, (1, 2, 3)),)),)
    sources = [LockedSource(name="web", pairs=(held,)), LockedSource(name="code", pairs=(some,)), WEB]
    found = made(held_out_section, locked(sources, [segment(0, 6, [1, 1, 1])], denials=denials))
    words = words_of(found.html)
    assert "web 512 500 50% code 7 90 9%" in words
    assert "5 3 web 3 In samples, padding replaces these documents." in words
    assert made(held_out_section, locked([WEB], [segment(0, 6, [1])])) is None


def test_counts_match_the_ledger(tmp_path):
    write_data(tmp_path)
    run = Run.open(write_toml(tmp_path, CHANGED + DENIED, head=HEAD), tokenizer=Words(eod=5))
    found = made(ledger_section, Target(kind=TargetKind.run, name=run.path, run=run))
    words, ledger = words_of(found.html), run.ledger()
    tokens = ledger.total.as_json()["tokens"]
    assert f"Tokens by source, before position {run.num_samples:,}" in words
    assert f"tokens of started passes {tokens['offered']:,} 100%" in words
    for name, label in (("denied", "denied"), ("dropped_tail", "dropped tail"), ("not_reached", "not reached yet")):
        assert tokens[name]
        assert f"{label} {tokens[name]:,} " in words
    assert "Balance: 0 tokens and slots are unaccounted for." in words
    assert "not counted" not in words
    web = dict(ledger.sources)["web"]
    assert f"web {web.counts.samples:,} {web.offered:,} {web.counts.with_loss:,}" in words


def test_fill_of_best_fit_packs_and_random_windows(write_pair):
    lengths = [3, 9, 4, 2, 0, 20]
    found = made(packing_section, opened(write_pair(lengths)))
    report = best_fit_report(np.array(lengths, dtype=np.int32), sequence_length=8)
    [chart] = found.charts
    fill, packs, windows = (dict(zip(chart.x, each.values, strict=True)) for each in chart.series)
    assert list(fill) == [2, 4, 8, 16, 32]
    assert fill[8] == report.fill
    assert packs[8] == 1 / 5
    assert windows[8] == pytest.approx((2 + 8 + 3 + 1 + 8) / 8 / 5)
    assert "8 (current)" in words_of(found.html)
    assert found.findings == []


def test_samples_and_passes_of_datasets(write_pair):
    small, large = write_pair([10] * 30, "small"), write_pair([10] * 270, "large")
    found = made(blend_section, opened("50", small, "50", large, length=10))
    words = words_of(found.html)
    assert "Training over 300 samples of 10 tokens" in words
    assert f"{small} 300 50% 150 5.00" in words
    assert f"{large} 2,700 50% 150 0.56" in words
    assert found.findings == [f"{small} is read 5.0 times if training reads as many tokens as all datasets have."]
    [chart] = found.charts
    assert [(each.name, each.values[0]) for each in chart.series] == [(small, 0), (large, 0)]
    assert chart.series[0].values[1] == 5
    assert list(chart.x) == [0, 300]


NOW = 10_000.0


def test_a_running_job_is_reported(tmp_path):
    description = {"settings": {}, "inputs": "", "files": ["a"], "num_shards": 4}
    (tmp_path / "job.json").write_text(json.dumps(description))
    write_report(tmp_path, 1, written=NOW - 10, num_text_bytes=1000)
    record = {"file": "<b>.jsonl", "line": 2, "reason": "no <i>key</i>", "text": "\x1b[31m"}
    (tmp_path / f"{key_of(1)}.rejected.jsonl").write_text(json.dumps(record) + "\n")
    worker = tmp_path / f"{2:024x}.lock"
    worker.write_text("elsewhere 77")
    os.utime(worker, (NOW - 2, NOW - 2))
    section = made(job_section, opened(str(tmp_path)), now=NOW)
    words = words_of(section.html)
    assert "shards done 1 of 4 (25%)" in words
    assert "speed 2 tokens/s estimated time left 1 min last shard done 10 s ago" in words
    assert "state running in 1 process" in words
    assert section.findings == ["25% of the records were rejected so far: 1."]
    assert "no &lt;i&gt;key&lt;/i&gt;" in section.html
    assert "&lt;b&gt;.jsonl:2" in section.html
    assert "\x1b" not in section.html


TARGET = locked([source("web", 9)], [segment(0, 6, [1])])


def test_statistics_are_drawn_over_steps(tmp_path):
    write = JsonLinesWriter(tmp_path / "train.jsonl")
    for step, waited in ((0, 0.0), (10, 2.0), (20, 12.0)):
        wait = DataWait(num_batches=step, total_seconds=waited, longest_seconds=waited)
        losses = {"<web>": 3.0 - step / 10, "code": np.float32("nan") if step == 10 else torch.tensor(0.5)}
        storage = {"s3://a": {"requests": step}, "s3://b": {"requests": 7}}
        write(unix_seconds=1000 + 10 * step, step=step, loss=losses, wait=wait, storage=storage, note="not a number")
    with open(write.path, "a") as stream:
        stream.write('{"step": 30, "lo')  # a line that is being written
    found = made(statistics_section, TARGET, statistics=str(write.path))
    share, loss, requests = found.charts
    assert (share.title, share.x.tolist()) == ("Share of the time spent waiting for data", [0, 10, 20])
    np.testing.assert_equal(share.series[0].values, [np.nan, 0.02, 0.1])
    assert found.findings == ["The training loop waited for data 6% of the time."]
    assert (loss.title, loss.summary) == ("loss", "Last values: <web> 1, code 0.5.")
    values = {each.name: each.values for each in loss.series}
    np.testing.assert_equal(values, {"<web>": [3, 2, 1], "code": [0.5, np.nan, 0.5]})
    assert (requests.title, [each.name for each in requests.series]) == ("storage/requests", ["s3://a", "s3://b"])
    assert "lines 3" in words_of(found.html)


PASSAGE = {"source": "web", "document": 7, "of_item": "a <b>", "of_document": "A\n\x1b[31m<b>"}
COLUMNS = ("benchmark", "items", "too_short", "found", "coverage", "documents", "first_step")
FOUND = {
    "words": 13,
    "num_tokens": 1000,
    "benchmarks": [
        dict(zip(COLUMNS, ("b/x.jsonl", 30, 1, 22, 0.5, 3, 7), strict=True)),
        dict(zip(COLUMNS[:-1], ("new.jsonl", 1, 0, 0, 0.0, 0), strict=True)),
    ],
    "sources": [{"source": "web", "items": 22, "documents": 3}],
    "items": [
        {"benchmark": "b/x.jsonl", "record": number, "coverage": number / 22, "passages": [PASSAGE]}
        for number in range(1, 23)
    ],
}


def test_passages_are_shown_side_by_side(tmp_path):
    path = tmp_path / "found.json"
    path.write_text(json.dumps(FOUND))
    section = made(contamination_section, TARGET, contamination=str(path))
    words = words_of(section.html)
    assert "x.jsonl 30 1 22 50% 3 7 new.jsonl 1 0 0 0% 0 1,000 tokens, searched for n-grams of 13 words" in words
    assert "x.jsonl:22: 100% of its n-grams, in 1 documents where text x.jsonl:22 a <b> web:7 A \\x1b[31m<b>" in words
    assert words.endswith("2 more items are not shown.")
    assert "<b>" not in section.html
    assert section.findings == ["22 of 30 items of x.jsonl were found in the data."]


def test_wrong_files_are_errors(tmp_path):
    assert made(contamination_section, TARGET) is None
    path = tmp_path / "found.json"
    with pytest.raises(InputError, match=r"`.*found\.json`: cannot read it: No such file"):
        made(contamination_section, TARGET, contamination=str(path))
    path.write_text('{"benchmarks": []}\n[1]\n')
    with pytest.raises(InputError, match=r"`.*found\.json`: cannot read it: "):
        made(contamination_section, TARGET, contamination=str(path))
    with pytest.raises(InputError, match=r"`.*`: line 2 is not a JSON object"):
        made(statistics_section, TARGET, statistics=str(path))


def chart(**changes) -> Chart:
    texts = {"id": "lengths", "title": "Lengths", "summary": "Most are short.", "x_label": "tokens", "y_label": "share"}
    return Chart(**texts | {"kind": "bars", "x": [1, 10, 100], "series": [Series("documents", [4, 2])]} | changes)


def test_a_page_has_contents_findings_and_charts_and_loads_nothing(write_pair):
    target = opened(write_pair([3]))
    plain = Section(id="one", title="One", html="<p>words</p>")
    charted = Section(id="two", title="Two", html="", findings=["It is <odd>."], charts=[chart(note="Some.")])
    found = page(target, [plain, charted], when=0.0).decode()
    assert f"<h1>{target.name}</h1>" in found
    assert '<time datetime="1970-01-01T00:00:00Z">1970-01-01 00:00 UTC</time>' in found
    assert '<li><a href="#one">One</a></li>' in found
    assert '<details><summary><h2 id="one">One</h2></summary><p>words</p></details>' in found
    assert '<li>It is &lt;odd&gt;. <a href="#two" class="where">Two</a></li>' in found
    assert found.index(">Findings<") < found.index("Contents")
    assert "names a tokenizer: tokens are shown as ids" in found  # a note of the target
    data = re.search(r'<figure class="chart"><script type="application/json">(.*?)</script></figure>', found)
    assert json.loads(data[1]) == charted.charts[0].as_json()
    assert "<noscript><h3>Lengths</h3><p>Most are short.</p>" in found
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', found)[1]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    body = re.sub(r"<(script|style)>.*?</\1>", "", found, flags=re.DOTALL)
    assert not re.search(r"\b(src|onclick|onload|action)=|https?:", body)


def test_a_failing_section_is_replaced_by_its_error(write_pair):
    def fail(*_: object) -> Section:
        raise DatasetFormatError("`<b>` is damaged", hint="verify it")

    listed = ListedSection(id="one", title="One", kinds={TargetKind.pair}, make=fail)
    found = make_section(listed, opened(write_pair([3])), ReportOptions())
    assert found.error == "`<b>` is damaged\nhint: verify it"
    assert found.section.html == (
        '<div class="error" role="note"><p><strong>This section failed. </strong>'
        "`&lt;b&gt;` is damaged</p><p>Hint: verify it</p></div>"
    )
    assert found.section.findings == ["One: this section failed: `<b>` is damaged"]


def test_non_finite_numbers_are_null():
    values = np.array([np.nan, np.inf, 1 / 3])
    found = chart(kind="lines", x=[0, 10, 20], series=[Series("web", values)])
    written = json.dumps(found.as_json()["series"], allow_nan=False)
    assert written == '[{"name": "web", "values": [null, null, 0.3333333]}]'


@given(
    ys=arrays.arrays(np.float64, st.integers(1, 300), elements=st.floats(-9, 9) | st.just(float("nan"))),
    most=st.integers(4, 40),
)
def test_bounds_first_and_last_are_kept(ys: np.ndarray, most: int):
    xs = kept_points(ys, most=most)
    kept = ys[xs]
    assert len(xs) <= most
    assert (xs[0], xs[-1]) == (0, len(ys) - 1)
    assert (np.diff(xs) > 0).all()
    if not np.isnan(ys).all():
        assert (np.nanmin(kept), np.nanmax(kept)) == (np.nanmin(ys), np.nanmax(ys))


HOSTILE = r"$\frac{1}{0}$ \x"


def picture(kind, **others) -> Chart:
    size = 3 if kind == "bars" else 4
    series = [Series(HOSTILE, [0.1, 0.25, 0.5, np.nan][:size]), Series("web", [0.9, 0.7, 0.1, 0.2][:size], colour=99)]
    xs = np.array([1, 10**6, 2 * 10**6, 3 * 10**9])
    return chart(kind=kind, x=xs, series=series, marks=[Mark(10**6, HOSTILE)], y_format="share", **others)


@pytest.mark.parametrize("kind", KINDS)
def test_pictures_are_deterministic(kind, tmp_path):
    picture(kind).save(tmp_path / "a.svg")
    drawn = (tmp_path / "a.svg").read_text()
    for words in (HOSTILE, "web", "Lengths", "tokens", "20%"):
        assert f"<!-- {words} -->" in drawn
    with matplotlib.rc_context({"figure.facecolor": "black", "font.size": 30}):
        picture(kind).save(tmp_path / "a.svg")  # it shows the same
    with pytest.raises(OutputExistsError):
        picture(kind, x_scale="log").save(tmp_path / "a.svg")
    with pytest.raises(ConfigError, match=r"the picture path must end in \.png, \.svg, \.pdf, got `.*a\.gif`"):
        picture(kind).save(tmp_path / "a.gif")


def test_charts_of_a_report_as_files_and_in_notebooks(tmp_path, capsys):
    prefix = write_corpus(tmp_path / "web", [[1, 2, 3], [4] * 40])
    found = tokenloom_look.charts(prefix)
    assert "Lengths of documents" in [each.title for each in found]
    assert found[0]._repr_png_().startswith(b"\x89PNG")
    assert main(["report", prefix, "-o", str(tmp_path / "page.html"), "--pictures", str(tmp_path / "pictures")]) == 0
    assert sorted(path.name for path in (tmp_path / "pictures").iterdir()) == sorted(f"{each.id}.png" for each in found)


def test_a_page_is_written_and_replaced_only_with_overwrite(write_pair, tmp_path, capsys):
    prefix = write_pair([3, 4])
    path = tmp_path / "page.html"
    path.write_text("mine")
    assert main(["report", f"{prefix}-missing", "-o", str(path)]) == 1
    assert "exists already" in capsys.readouterr().err
    assert path.read_text() == "mine"
    assert main(["report", prefix, "-o", str(path), "--overwrite"]) == 0
    out, err = capsys.readouterr()
    assert (out.startswith(f"{path}: "), " sections, " in out, err) == (True, True, "")
    assert path.read_text().startswith("<!doctype html>")


def test_a_failing_section_leaves_the_others(write_pair, tmp_path, capsys):
    prefix = write_pair([3, 4])
    index = Path(f"{prefix}.idx")
    data = index.read_bytes()
    index.write_bytes(data[:34] + (9).to_bytes(4, "little") + data[38:])
    path = tmp_path / "page.html"
    assert main(["report", prefix, "-o", str(path), "--json"]) == 1
    out, err = capsys.readouterr()
    assert "error: Documents and tokens: " in err
    described = json.loads(out)
    assert (described["path"], described["num_bytes"]) == (str(path), path.stat().st_size)
    found = next(each for each in described["sections"] if each["id"] == "documents")
    assert not found["made"]
    assert "add up to" in found["error"]
    assert "This section failed" in path.read_text()


def test_a_prefix_is_a_pair_with_documents_and_samples(tmp_path: Path):
    prefix = write_texts(tmp_path / "corpus")
    target = open_target([f"{prefix}.idx"], tokenizer="byte", settings=SampleSettings(sequence_length=8))
    assert (target.kind, target.name, target.notes) == (TargetKind.pair, prefix, ())
    assert [(source.num_documents, source.num_tokens) for source in target.sources] == [(3, 57)]
    assert "".join(token.text for token in target.document(0, 1).tokens[:-1]) == TEXTS[1]
    assert target.num_positions == 7
    assert len(target.sample(2).tokens) == 9
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.bin", "corpus.idx"]


def test_blends_of_arguments_and_of_files(tmp_path: Path):
    one, two = write_texts(tmp_path / "one"), write_texts(tmp_path / "two", ("a", "b"))
    target = open_target(["30", one, "70", two])
    assert target.kind is TargetKind.blend
    found = [(source.name, source.weight, source.num_documents) for source in target.sources]
    assert found == [(one, 30.0, 3), (two, 70.0, 2)]
    assert target.num_positions is None
    listed = tmp_path / "blend.txt"
    listed.write_text(f"30 {one}\n70 {two}\n")
    assert open_target([str(listed)]).blend == target.blend
    with pytest.raises(ConfigError, match=r"the blend .* has no samples\nhint: pass a pair"):
        target.sample(0)


def test_a_run_has_its_sources_and_positions(tmp_path: Path):
    target = open_target([write_run(tmp_path)])
    assert (target.kind, target.num_positions) == (TargetKind.run, 4)
    assert [source.name for source in target.sources] == ["web"]
    assert target.notes == ("the run has no tokenizer: tokens are shown as ids",)
    assert len(target.sample(3).tokens) == 9
    assert target.document(0, 2).heading == "document 2 of web"


def test_opening_a_run_without_a_lock_is_an_error(tmp_path: Path):
    path = write_run(tmp_path, locked=False)
    with pytest.raises(ConfigError, match=r"is not locked\nhint: lock it: tokenloom run lock"):
        open_target([path])
    assert not (tmp_path / "run.lock").exists()


def test_documents_of_pairs_are_numbered_by_source(tmp_path: Path):
    for name, lengths in (("a", (4, 0, 9)), ("b", (0, 5, 30))):
        write_sentences(tmp_path / name, [[[7] * length] if length else [] for length in lengths])
    (tmp_path / "run.toml").write_text(
        "order = 1\nseed = 3\n[sources]\nboth = ['a', 'b']\n"
        "[[stages]]\nsequence_length = 8\nsamples = 4\nweights = { both = 1 }\n"
    )
    Run.open(tmp_path / "run.toml")
    blend = open_target([str(tmp_path / "a"), str(tmp_path / "b")])
    assert [blend.named(*place) for place in ((0, 2), (1, 1), (1, 2))] == [(0, 2), (1, 1), (1, 2)]
    run = open_target([str(tmp_path / "run.toml")])
    names = [run.named(*place) for place in ((0, 0), (0, 2), (1, 1), (1, 2))]
    assert names == [(0, 0), (0, 1), (0, 2), (0, 3)]
    assert [run.document(*name).num_tokens for name in names] == [4, 9, 5, 30]
    assert run.document(0, 3).heading == "document 3 of both"


def test_missing_targets_are_named(tmp_path: Path):
    with pytest.raises(DatasetNotFoundError, match=r"no dataset, run or job at `.*nothing_here`\nhint: pass a prefix"):
        open_target([str(tmp_path / "nothing_here")])
    (tmp_path / "half.idx").write_bytes(b"")
    with pytest.raises(DatasetNotFoundError, match=r"no file `.*half\.bin`"):
        open_target([str(tmp_path / "half")])
    with pytest.raises(DatasetNotFoundError, match="'nothing_here' in the blend"):
        open_target(["30", write_texts(tmp_path / "one"), "70", "nothing_here"])
    with pytest.raises(DatasetNotFoundError, match=r"no file `.*missing\.toml`"):
        open_target([str(tmp_path / "missing.toml")])
