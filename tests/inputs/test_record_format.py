import gzip
from pathlib import Path

from tests.preprocess.corpus import documents_of
from tests.support import small_shards

from tokenloom.errors import ConfigError
from tokenloom.inputs import TEXT_KEY
from tokenloom.inputs.find import formats_by_name, inspect_input
from tokenloom.inputs.formats import FORMATS
from tokenloom.inputs.formats.text import FileBlock
from tokenloom.inputs.record_format import RecordFormat, SliceReader
from tokenloom.inputs.streams import SliceStream
from tokenloom.preprocess.settings import BadRecordBudget, CorpusSettings
from tokenloom.preprocess.text import preprocess_corpus
from tokenloom.tokenizers.plain import ByteTokenizer


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
            message = f"`{path}` has texts without names"
            raise ConfigError(message)

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
