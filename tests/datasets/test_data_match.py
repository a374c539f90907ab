"""The kinds of data that each dataset class reads, and its errors for other kinds."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from tests.datasets.masked import make_dataset as make_masked
from tests.indexed.manifest.manifests import make_tokenizer_identity, write_recorded
from tests.support import make_dataset

from tokenloom import ConfigError, DataMismatchWarning, IndexedDatasetBuilder, MissingEodWarning

CORPUS = [[[10, 11, 12], [13, 9]], [[14, 9, 12, 13]]]
CHAT = {"schema": "messages", "chat_template": {"name": "default", "sha256": "ab"}}
KINDS = {
    "single sentences": {"split_sentences": True},
    "conversations": CHAT,
    "text and images": {"text_key": None, "image_key": None, "pad_length": None},
}


@pytest.fixture
def images(tmp_path):
    with IndexedDatasetBuilder(f"{tmp_path / 'images'}.bin", dtype=np.int32, multimodal=True) as builder:
        builder.add_item(np.array([1, 2], dtype=np.int32), 0)
        builder.add_item(np.array([3, 1, 2], dtype=np.int32), 1)
        builder.end_document()
        builder.finalize(f"{tmp_path / 'images'}.idx")
    return str(tmp_path / "images")


@pytest.mark.parametrize(("kind", "options"), KINDS.items())
def test_other_data_are_no_documents(tmp_path, kind, options):
    prefix = write_recorded(tmp_path / "corpus", CORPUS, options=options)
    message = f"^`{prefix}`: expected whole documents, found {kind}\nhint: .*set `allow_data_mismatch=True`"
    with pytest.raises(ConfigError, match=message):
        make_dataset(prefix)
    with pytest.warns(DataMismatchWarning, match=f"expected whole documents, found {kind}"):
        make_dataset(prefix, allow_data_mismatch=True)


@pytest.mark.parametrize("options", [{}, {"split_sentences": False}, {"split_sentences": {"several": [True, False]}}])
def test_documents_and_what_cannot_be_told_are_read(tmp_path, options):
    assert len(make_dataset(write_recorded(tmp_path / "corpus", CORPUS, options=options)))


@pytest.mark.parametrize(("options", "error"), [(CHAT, ConfigError), ({"split_sentences": False}, DataMismatchWarning)])
def test_other_data_are_no_sentences(tmp_path, options, error):
    prefix = write_recorded(tmp_path / "corpus", CORPUS, options=options)
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataMismatchWarning)
        with pytest.raises(error, match="expected single sentences, found "):
            make_masked("t5", prefix, allow_tokenizer_mismatch=True)


@pytest.mark.parametrize("setting", ["reset_position_ids", "eod_mask_loss"])
def test_settings_that_look_for_eod_warn_where_there_is_none(tmp_path, setting):
    prefix = write_recorded(tmp_path / "corpus", CORPUS, tokenizer=make_tokenizer_identity(eod=None))
    message = f"^`{prefix}`: `{setting}` need end-of-document tokens, but the data were made without"
    with pytest.warns(MissingEodWarning, match=message):
        dataset = make_dataset(prefix, **{setting: True})
    assert len(make_dataset(prefix)) == len(dataset)
