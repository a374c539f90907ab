import csv
import gzip
import io
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.inputs.corpora import COMPRESSIONS, bad, documents, open_whole, parse_file, write_data
from tests.preprocess.corpus import documents_of
from tests.support import small_shards

from tokenloom.errors import ConfigError, InputError
from tokenloom.inputs import TEXT_KEY
from tokenloom.inputs.find import formats_by_name, inspect_input
from tokenloom.inputs.formats import FORMATS
from tokenloom.inputs.formats.text import FileBlock
from tokenloom.inputs.record_format import RecordFormat, SliceReader
from tokenloom.inputs.records import parse_block, records_of
from tokenloom.inputs.streams import SliceStream
from tokenloom.preprocess.corpus import preprocess_corpus
from tokenloom.preprocess.settings import BadRecordBudget, CorpusSettings
from tokenloom.tokenizers.plain import ByteTokenizer


def test_a_line_of_text_is_a_document_whatever_it_looks_like(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b'\xef\xbb\xbffirst\n{"text": 1}\r\n\n \t\n\xef\xbb\xbfmark\nnul \0 byte\ncaf\xe9\nlast \xc3\xa9')
    parsed = parse_file(path, input_format="text-lines")
    expected = ["first", '{"text": 1}\r', "\ufeffmark", "nul \0 byte", "last é"]
    assert documents(parsed) == [[text] for text in expected]
    assert bad(parsed) == [(7, "not UTF-8: value 0xe9 at byte 4")]
    assert sum(block.num_blank_lines for block in parsed) == 2


@pytest.mark.parametrize("input_format", ["jsonl", "text-lines"])
@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("block_bytes", [1, 1000])
def test_lines_of_utf16_are_refused(tmp_path, input_format, encoding, block_bytes):
    path = write_data(tmp_path / "a", '\ufeff{"text": "a"}\n'.encode(encoding))
    with pytest.raises(InputError, match=r"`.*/a`: expected UTF-8, found the byte order mark of UTF-16") as caught:
        parse_file(path, input_format=input_format, block_bytes=block_bytes)
    assert "iconv" in caught.value.hint


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_file_of_text_is_a_document_as_it_is(tmp_path, suffix):
    path = write_data(tmp_path / f"a.txt{suffix}", COMPRESSIONS[suffix]("\ufeffone\r\n\n\0 two\n".encode()))
    assert documents(parse_file(path, input_format="text-files")) == [["one\r\n\n\0 two\n"]]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"a\ncaf\xe9", "not UTF-8: value 0xe9 at byte 6"),
        ("text".encode("utf-16"), "not UTF-8: value 0xff at byte 1"),
        (b"x" * 3000, "longer than 2000 bytes (`max_record_bytes`); only its start is shown"),
    ],
)
def test_a_file_of_text_that_is_none_is_a_bad_record(tmp_path, data, reason):
    path = write_data(tmp_path / "a.txt", data)
    [block] = parse_file(path, input_format="text-files", max_record_bytes=2000)
    [line] = block.bad_lines
    assert (line.path, line.unit, line.line, line.reason) == (str(path), "file", 1, reason)
    assert line.data == data[:1024]
    assert (block.num_documents, documents([block])) == (0, [])


@pytest.mark.parametrize("data", [b"", b" \n\r\n"])
def test_a_file_of_white_space_is_blank(tmp_path, data):
    [block] = parse_file(write_data(tmp_path / "a.txt", data), input_format="text-files")
    assert (block.num_documents, block.num_blank_lines, block.bad_lines) == (0, 1, [])


ROWS = 'id,text,url\n1,one,u\n2,"two\nlines, and ""quotes""",u\n3,,u\n'
TEXTS = [["one"], ['two\nlines, and "quotes"'], [""]]


def refused(path, **options):
    with pytest.raises(InputError) as caught:
        parse_file(path, **options)
    return caught.value


@pytest.mark.parametrize(("mark", "end"), [(b"", "\n"), (b"\xef\xbb\xbf", "\r\n")])
def test_the_texts_of_a_column(tmp_path, mark, end):
    path = write_data(tmp_path / "a.csv", mark + ROWS.replace("\n", end).encode())
    for block_bytes in (1, 2, 7, 1000):
        found = documents(parse_file(path, block_bytes=block_bytes))
        assert found == [[text.replace("\n", end) for text in each] for each in TEXTS]


@pytest.mark.parametrize("name", ["a.tsv", "b.tab"])
def test_tabs_separate_fields_too(tmp_path, name):
    path = write_data(tmp_path / name, 'title\ttext\na, b\t"x\ty"\n')
    assert documents(parse_file(path, keys=["text", "title"])) == [["x\ty"]]
    assert documents(parse_file(path, keys=["title"])) == [["a, b"]]


@pytest.mark.parametrize("block_bytes", [1, 10, 1000])
def test_bad_rows_are_bad_alone(tmp_path, block_bytes):
    path = write_data(
        tmp_path / "a.csv",
        b'id,text\n1,one\n2,two,three\n4\n5,"a\nb"\n\n7,NULL\n8,caf\xe9\n9,"q\rr"\n10\n11,\n12\n13\n',
    )
    parsed = parse_file(path, block_bytes=block_bytes)
    assert documents(parsed) == [["one"], ["a\nb"], ["NULL"], ["q\rr"], [""]]
    assert bad(parsed) == [
        (2, "expected 2 fields, found 3"),
        (3, "expected 2 fields, found 1"),
        (6, "not UTF-8: value 0xe9 at byte 4"),
        (8, "expected 2 fields, found 1"),
        (10, "expected 2 fields, found 1"),
        (11, "expected 2 fields, found 1"),
    ]
    assert [line.data for block in parsed for line in block.bad_lines][:2] == [b"2,two,three", b"4"]


@pytest.mark.parametrize("rows", [b'2,"x', b'2,"x\n', b'"2,x\n3,y', b'2,"x\n3,y\n4,""\n'])
def test_a_quote_that_is_open_at_the_end_is_an_error(tmp_path, rows):
    error = refused(write_data(tmp_path / "a.csv", b"id,text\n1,one\n" + rows))
    assert error.message.endswith("a.csv`: a quote is not closed before the end of the file")


@pytest.mark.parametrize("block_bytes", [1, 5, 1000])
def test_a_row_that_is_too_long_leaves_its_neighbours(tmp_path, block_bytes):
    path = write_data(tmp_path / "a.csv", 'text\nbefore\n"' + 'long\n""' * 20 + '"\nafter\nx"y\n')
    parsed = parse_file(path, block_bytes=block_bytes, max_record_bytes=40)
    assert documents(parsed) == [["before"], ["after"], ['x"y']]
    assert [number for number, _ in bad(parsed)] == [2]


@pytest.mark.parametrize("num_rows", [0, 100_000])
def test_a_row_that_is_longer_than_what_is_read_at_once(tmp_path, num_rows):
    path = write_data(tmp_path / "a.csv", "text\n" + "a\n" * num_rows + "x" * 800_000 + "\nb\n")
    error = refused(path, memory_bytes=64 << 20)
    assert "straddling object straddles two block boundaries" in error.message
    assert error.hint == "close open quotes, or raise `memory_bytes`: rows may take 1/256 of it, 262144 bytes"
    assert len(documents(parse_file(path, memory_bytes=800_001 * 256))) == num_rows + 2


def test_rows_are_numbered_and_halved(tmp_path):
    path = write_data(tmp_path / "a.csv", ROWS + "4\n")
    with closing(open_whole(path)) as reader:
        [block] = reader.blocks()
        assert reader.num_rows == 4
    halves = block.halves()
    assert [half.first_record for half in halves] == [1, 3]
    records = [record for half in halves for record in records_of(half)]
    assert [record.number for record in records] == [1, 2, 3, 4]
    assert [record.value["id"] for record in records[:3]] == ["1", "2", "3"]
    assert str(records[3].value) == "expected 3 fields, found 1"
    assert halves[1].halves()[0].halves() is None


def test_a_reader_may_be_closed_at_any_time(tmp_path):
    path = write_data(tmp_path / "a.csv", ROWS + "4,text,u\n" * 500_000)
    for num_blocks in range(6):
        reader = open_whole(path, keys=["text"], memory_bytes=64 << 20)
        for _ in zip(range(num_blocks), reader.blocks(), strict=False):
            pass
        reader.close()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no column 'text'; found none"),
        (b"id,body\n1,one\n", "no column 'text'; found 'id', 'body'"),
        (b"text,text\na,b\n", "2 columns are named 'text'"),
        (b'"text\n', "no column 'text'; found 'text\\n'"),
        (b"caf\xe9\n", "no column 'text'; found 'caf\ufffd'"),
        (b"\xff\xfet\0", "expected UTF-8, found the byte order mark of UTF-16"),
        (b'"' + b"long" * 300_000, "no column 'text'; found 'longlong"),
    ],
)
def test_headers_that_name_no_columns(tmp_path, data, message):
    assert message in refused(write_data(tmp_path / "a.csv", data)).message


@given(
    rows=st.lists(st.lists(st.text(alphabet=',"\n\r\tab é😀', max_size=8), min_size=2, max_size=2), max_size=8),
    block_bytes=st.integers(1, 40),
    end=st.sampled_from(["\n", "\r\n"]),
)
def test_what_csv_writes_is_read_back(tmp_path_factory, rows, block_bytes, end):
    sink = io.StringIO(newline="")
    csv.writer(sink, lineterminator=end, quoting=csv.QUOTE_ALL).writerows([["text", "more"], *rows])
    path = write_data(tmp_path_factory.mktemp("csv") / "a.csv", sink.getvalue())
    with closing(open_whole(path, keys=["text", "more"], block_bytes=block_bytes)) as reader:
        blocks = list(reader.blocks())
    for column, keys in enumerate((["text"], ["more"])):
        found = documents(parse_block(block, keys) for block in blocks)
        assert found == [[row[column]] for row in rows]


# Texts between lines of `%`, as in files of `fortune`.
class FortuneReader(SliceReader):
    def __init__(self, slice_, options):
        super().__init__(slice_, options)
        self._stream = SliceStream(slice_, max_window_bytes=options.limits.max_window_bytes)

    @property
    def position(self):
        return self._slice.file.num_bytes

    def read_blocks(self):
        texts = self._stream.read(1 << 30).removeprefix(b"%FORTUNE\n").split(b"%\n")
        for text in texts if self._slice.file.compression != "none" else texts[self._slice.start : self._slice.stop]:
            self.num_rows += 1
            self.num_text_bytes += len(text)
            yield FileBlock(path=self._slice.file.path, data=text, max_record_bytes=self._limits.max_record_bytes)

    def close(self):
        self._stream.close()


class Fortunes(RecordFormat):
    title = "Fortunes"
    suffixes = (".fortune",)
    magics = (b"%FORTUNE\n",)

    def unit_bytes(self, file):
        if file.compression != "none":
            return [file.num_bytes]
        return [len(text) for text in Path(file.path).read_bytes().split(b"%\n")]

    def check_keys(self, path, keys):
        if tuple(keys) != (TEXT_KEY,):
            raise ConfigError(f"`{path}` has texts without names")

    def open(self, slice_, options):
        return FortuneReader(slice_, options)


def test_a_format_is_added_by_one_object(tmp_path, monkeypatch):
    monkeypatch.setitem(FORMATS, "fortunes", Fortunes())
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.fortune").write_text("%FORTUNE\none\n%\ntwo\n%\n \n%\nthree\n")
    (folder / "b.fortune.gz").write_bytes(gzip.compress(b"four\n%\nfive\n"))
    (folder / "notes.md").write_text("nothing of it")
    with small_shards():
        settings = CorpusSettings(shard_bytes=12, bad_records=BadRecordBudget(most=1))
    summary = preprocess_corpus([folder], tmp_path / "out", ByteTokenizer(), settings, num_processes=1)
    expected = [[list(f"{text}\n".encode())] for text in ("one", "two", "three", "four", "five")]
    assert documents_of(tmp_path / "out_text_document") == expected
    assert summary.num_blank_lines == 1
    assert summary.num_shards > 1
    (tmp_path / "nameless").write_text("%FORTUNE\none\n")
    assert formats_by_name("a.fortune.zst") == ("fortunes",)
    assert inspect_input(str(tmp_path / "nameless")).format == "fortunes"
    assert CorpusSettings(input_format="fortunes").input_format == "fortunes"
