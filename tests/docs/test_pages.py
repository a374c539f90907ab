"""Every page runs as it is written, and prints what it shows."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.docs.pages import GIVEN, ROOT, all_pages, blocks_of, given_to, run_page

DOCS = ROOT / "docs"

LIBRARIES = {
    "docs/guides/from-megatron.md": ["megatron.core"],
    "docs/guides/what-did-the-model-see.md": ["pyarrow", "matplotlib"],
    "packages/tokenloom-retro/GUIDE.md": ["h5py", "faiss", "wordllama"],
}
"""Libraries that a page imports beside torch, and that may be missing."""


def section(text: str, title: str) -> str:
    """Returns the part of a page below the heading that begins so."""
    return text[text.index(f"\n## {title}") :].split("\n## ", 2)[1]


def verify_resume(text: str, printed: str, folder: Path) -> None:
    (shown,) = re.findall(r"```text\n(.*?)```", section(text, "Does a resumed run"), re.DOTALL)
    assert shown in printed
    assert re.findall(r", (\d+) failed; ", printed) == ["0", "4", "0"]
    assert printed.endswith("True\n")


def are_my_documents_apart(text: str, printed: str, folder: Path) -> None:
    leak, apart = re.findall(r"```text\n(.*?)```", text, re.DOTALL)
    assert re.search(re.sub(r"\d+", r"\\d+", leak.partition("\n")[0]), printed)
    assert apart in printed
    assert "The leak begins in `layers.0.conv`, the first module whose output differs" in re.sub(r"\s+", " ", printed)
    assert "exit status 1" in printed
    assert re.search(r"^True \d+\n$", printed, re.MULTILINE)


def changing_a_run(text: str, printed: str, folder: Path) -> None:
    assert re.findall(r"^\*\*(\d+)\.\*\*", text, re.MULTILINE) == [str(number) for number in range(1, 11)]
    digests = re.findall(r"^([0-9a-f]{64})  run\.toml before position 800$", printed, re.MULTILINE)
    assert len(digests) == 2
    assert digests[0] == digests[1]
    firsts = [int(found.replace(",", "")) for found in re.findall(r"^ +moved position +([\d,]+)", printed, re.M)]
    assert len(firsts) == 4
    assert all(first >= start for first, start in zip(firsts, (800, 1600, 2000, 2400), strict=True))
    assert "must not change: a sample with seed 1234 would become one with seed 4321" in printed
    assert re.search(r"^ +ok +\n.*?^ +pairs +4 +\n", printed, re.MULTILINE | re.DOTALL)
    assert re.search(
        r"^position 799 of the run\nsource \w+, pass \d+, window [\d,]+, stage main, ", printed, re.MULTILINE
    )


def what_did_the_model_see(text: str, printed: str, folder: Path) -> None:
    assert re.findall(r"^\*\*(\d+)\.\*\*", text, re.MULTILINE) == [str(number) for number in range(1, 9)]
    worst = re.findall(r"^ +(web|code):(\d+) +\d+\.\d\d% ", printed, re.M)
    assert len(worst) == 3
    command = "  tokenloom deny run.toml --from-step 150 --global-batch-size 8 "
    assert command + " ".join(f"--document {':'.join(each)}" for each in worst) in printed
    assert re.search(r"^ +position +1,200 +\n +documents +\w+:\d+, \w+:\d+, \w+:\d+ +$", printed, re.M | re.S)
    assert re.search(r"^step 150, rank 1, stage main, pass 0$", printed, re.M)
    assert re.search(r"^ +1,202 +0 +0 ", printed, re.M)
    denied = printed[printed.index("spans that become padding:") :]
    assert "spans read before the denial:" in denied
    assert "nothing else moves" in denied
    assert "balance 0" in denied
    assert "as expected: 800 samples" in denied
    assert re.search(r"^ +position +0 +\n.*?^ +before stage +main", denied, re.M | re.S)


def from_megatron(text: str, printed: str, folder: Path) -> None:
    (shown,) = re.findall(r"```text\n(.*?)```", text, re.DOTALL)
    assert printed.count(shown) == 2, printed
    assert "megatron.core.datasets.gpt_dataset -> tokenloom.megatron.core.datasets.gpt_dataset" in printed


def seeing_your_data(text: str, printed: str, folder: Path) -> None:
    assert re.search(r"^report\.html: \d+ sections, ", printed, re.MULTILINE)
    made = next(folder.parent.rglob("seeing"))
    page = (made / "report.html").read_text()
    assert "the run has 10,000 samples" in page
    titles = {re.sub("<.*?>", "", title).lower() for title in re.findall(r"<h2\b.*?>(.*?)</h2>", page)}
    named = re.findall(r"^\| ([a-z ,]+) \| .*\? \|$", text, re.MULTILINE)
    assert len(named) == 7
    assert {name for row in named for name in row.split(", ")} <= titles
    assert re.search(r"^── document [\d,]+ of web, tokens [\d,]+ to [\d,]+ of [\d,]+ ─+$", printed, re.MULTILINE)
    assert (made / "mixture.svg").read_bytes().startswith(b"<?xml")
    pictures = re.findall(r"!\[.+\]\((\S+)\)", text)
    assert [(DOCS / "guides" / name).read_bytes()[:4] for name in pictures] == [b"\x89PNG"] * 2


def your_own(text: str, printed: str, folder: Path) -> None:
    (shown,) = re.findall(r"```text\n(.*?)```", section(text, "Testing your own"), re.DOTALL)
    *expected, _ = shown.splitlines()
    assert "\n".join(expected) in printed


def readme(text: str, printed: str, folder: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    assert "torch.Size([8, 512]) " in printed
    assert len(text.splitlines()) <= 80


def concepts(text: str, printed: str, folder: Path) -> None:
    printed = printed.replace(", dtype=int64", "")
    assert "documents=array([0, 1]), starts=array([0, 0]), lengths=array([6, 3])" in printed
    assert "b'aaaaaabb' [0, 1, 2, 3, 4, 5, 0, 1]\n" in printed


def quickstart(text: str, printed: str, folder: Path) -> None:
    assert "torch.Size([8, 128]) " in printed
    assert re.search(r"^step 10 loss [\d.]+\ngoing on at step 10\nstep 20 loss ", printed, re.MULTILINE)


def retrieval(text: str, printed: str, folder: Path) -> None:
    assert re.search(r"^── chunk 0, tokens 0 to 63 ─+$", printed, re.MULTILINE)
    assert re.search(r"^    neighbor 1: document \d+ of code_text_document, tokens \d+ to \d+$", printed, re.MULTILINE)
    assert "{'text': (4, 257), 'neighbor_chunks': (4, 4, 2, 2), 'neighbor_tokens': (4, 4, 2, 128)}" in printed
    recalls = [float(found) for found in re.findall(r"^[1248] ([01]\.\d+)$", printed, re.MULTILINE)]
    assert len(recalls) == 4
    assert recalls[0] < 1
    assert recalls[-1] > 0.9  # all lists; of equal chunks another one may be found
    assert len(re.findall(r"^project: ok: ", printed, re.MULTILINE)) == 1


def contamination(text: str, printed: str, folder: Path) -> None:
    shown, _ray = re.findall(r"```text\n(.*?)```", text, re.DOTALL)
    assert shown in printed
    assert re.search(r"^doctests\.jsonl: clean up to step \d+; [\d,]+ items read from there on$", printed, re.MULTILINE)
    assert re.search(r"^  last clean checkpoint: ", printed, re.MULTILINE)
    assert "exit status 1" in printed
    assert re.search(r"^9\d % of the tokens are trained on$", printed, re.MULTILINE)
    assert "nothing else moves" in printed
    after = printed[printed.index("nothing else moves") :]
    assert "doctests.jsonl: clean, no step reads any passage\n" in after
    assert "in the data, not in the run\n" in after


def recipes(text: str, printed: str, folder: Path) -> None:
    assert "[0.5, 1.0]\n8 prompts, the longest of " in re.sub(r"^(?!\[0|8 p).*\n", "", printed, flags=re.MULTILINE)
    assert printed.endswith(" 256\n")


def shared_prefixes(text: str, printed: str, folder: Path) -> None:
    shown = re.findall(r"^print\(.*?\)  # (\[.*?\])", section(text, "Sequences that begin alike"), re.MULTILINE)
    assert len(shown) == 3
    assert "\n".join(shown) in printed
    ((total, computed),) = re.findall(r"^(\d+) tokens, (\d+) computed$", printed, re.MULTILINE)
    assert int(computed) < 0.6 * int(total)
    assert printed.endswith("change: apart alone: apart\n")


ALSO: dict[str, tuple[Callable[[str, str, Path], None], ...]] = {
    "README.md": (readme,),
    "docs/concepts.md": (concepts,),
    "docs/quickstart.md": (quickstart,),
    "docs/guides/are-my-documents-apart.md": (are_my_documents_apart,),
    "docs/guides/changing-a-run.md": (changing_a_run,),
    "docs/guides/extending.md": (your_own, verify_resume),
    "docs/guides/from-megatron.md": (from_megatron,),
    "docs/guides/recipes.md": (recipes,),
    "docs/guides/sft-and-packing.md": (shared_prefixes,),
    "docs/guides/test-set-in-my-data.md": (contamination,),
    "docs/guides/what-did-the-model-see.md": (what_did_the_model_see, seeing_your_data),
    "packages/tokenloom-retro/GUIDE.md": (retrieval,),
}
"""What holds of a page beyond that its blocks run: of its text, what it printed, and the folder that it ran in."""

PAGES = {str(page.relative_to(ROOT)): page for page in all_pages()}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, page in PAGES.items() if blocks_of(page)])
def test_a_page_runs_as_it_is_written(name, tmp_path):
    for library in ("torch", *LIBRARIES.get(name, ())):
        pytest.importorskip(library)
    folder = tmp_path / "page"
    folder.mkdir()
    printed = run_page(PAGES[name], folder)
    for check in ALSO.get(name, ()):
        check(PAGES[name].read_text(), printed, folder)


def test_what_is_said_of_pages_is_said_of_pages_that_are_there():
    assert {*LIBRARIES, *ALSO} <= set(PAGES)
    assert {name for page in PAGES.values() for name in given_to(page)} <= set(GIVEN)


PAGE = """# A page
<!-- given: corpus.jsonl -->

```sh
mkdir made && cd made
export LETTER=x
```

1. In a list:

   ```python
   import os

   class Kept: pass
   ```

```text
never run
```

```python needs=no_such_library
import no_such_library
```

```python
import pickle

print(os.path.basename(os.getcwd()), os.environ["LETTER"], type(pickle.loads(pickle.dumps(Kept()))).__name__)
```

```sh
cat | wc -c; wc -l < ../corpus.jsonl
```
"""


def test_blocks_share_a_folder_variables_and_names(tmp_path):
    page, folder = tmp_path / "page.md", tmp_path / "page"
    page.write_text(PAGE)
    folder.mkdir()
    found = [(block.line, block.language) for block in blocks_of(page)]
    assert found == [(4, "sh"), (11, "python"), (21, "python"), (25, "python"), (31, "sh")]
    assert [block.needs for block in blocks_of(page) if block.needs] == [("no_such_library",)]
    assert run_page(page, folder).split() == ["made", "x", "Kept", "0", "200"]


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ("```sh\necho before\nfalse\necho after\n```", "before\nPAGE:3: the shell ended with status 1\n"),
        ("```python\nx = 1\nx.y\n```", 'File "PAGE", line 5, in <module>\n    x.y\n'),
    ],
)
def test_a_block_that_fails_is_named_by_its_line(block, expected, tmp_path):
    page, folder = tmp_path / "page.md", tmp_path / "page"
    page.write_text(f"# A page\n\n{block}\n")
    folder.mkdir()
    with pytest.raises(AssertionError) as caught:
        run_page(page, folder)
    assert expected.replace("PAGE", str(page)) in str(caught.value)
    assert "after" not in str(caught.value)


def test_a_marker_that_means_nothing_is_refused(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```python skip\n```\n")
    with pytest.raises(AssertionError, match=r"page.md:1: unknown \['skip'\]"):
        blocks_of(page)
