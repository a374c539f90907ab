import pytest
from tests.inputs.corpora import COMPRESSIONS, bad, documents, parse_file

from tokenloom.errors import InputError


def test_a_line_of_text_is_a_document_whatever_it_looks_like(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b'\xef\xbb\xbffirst\n{"text": 1}\r\n\n \t\n\xef\xbb\xbfmark\nnul \0 byte\ncaf\xe9\nlast \xc3\xa9')
    parsed = parse_file(path, input_format="text-lines")
    expected = ["first", '{"text": 1}\r', "\ufeffmark", "nul \0 byte", "last é"]
    assert documents(parsed) == [[text] for text in expected]
    assert bad(parsed) == [(7, "not UTF-8: byte 0xe9 at column 4")]
    assert sum(block.num_blank_lines for block in parsed) == 2


@pytest.mark.parametrize("input_format", ["jsonl", "text-lines"])
@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("block_bytes", [1, 1000])
def test_lines_of_utf16_are_refused(tmp_path, input_format, encoding, block_bytes):
    path = tmp_path / "a"
    path.write_bytes('\ufeff{"text": "a"}\n'.encode(encoding))
    with pytest.raises(InputError, match=r"`.*/a`: expected UTF-8, found the byte order mark of UTF-16") as caught:
        parse_file(path, input_format=input_format, block_bytes=block_bytes)
    assert "iconv" in caught.value.hint


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_file_of_text_is_a_document_as_it_is(tmp_path, suffix):
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(COMPRESSIONS[suffix]("\ufeffone\r\n\n\0 two\n".encode()))
    assert documents(parse_file(path, input_format="text-files")) == [["one\r\n\n\0 two\n"]]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"a\ncaf\xe9", "not UTF-8: byte 0xe9 at column 6"),
        ("text".encode("utf-16"), "not UTF-8: byte 0xff at column 1"),
        (b"x" * 3000, "longer than 2000 bytes (`max_record_bytes`); only its start is kept"),
    ],
)
def test_a_file_of_text_that_is_none_is_a_bad_record(tmp_path, data, reason):
    path = tmp_path / "a.txt"
    path.write_bytes(data)
    [block] = parse_file(path, input_format="text-files", max_record_bytes=2000)
    [line] = block.bad_lines
    assert (line.path, line.unit, line.line, line.reason) == (str(path), "file", 1, reason)
    assert line.data == data[:1024]
    assert (block.num_documents, documents([block])) == (0, [])


@pytest.mark.parametrize("data", [b"", b" \n\r\n"])
def test_a_file_of_white_space_is_blank(tmp_path, data):
    (tmp_path / "a.txt").write_bytes(data)
    [block] = parse_file(tmp_path / "a.txt", input_format="text-files")
    assert (block.num_documents, block.num_blank_lines, block.bad_lines) == (0, 1, [])
