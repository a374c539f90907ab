"""Runs of every kind of samples, and their ledgers counted sample by sample."""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tests.datasets.conversations import ANSWER, PROMPT, conversation, write_conversations
from tests.run.folders import HEAD, STAGE, write_data, write_toml
from tests.support import CharacterTokenizer, StandInTokenizer

from tokenloom.errors import UntrainableWarning
from tokenloom.run.run import Run

CHANGED = STAGE.replace("600", "300")
CHANGED += '[[stages]]\nname = "second"\nsamples = 77\nweights = { web = 1, code = 2 }\n'
CHANGED += '[[stages]]\nname = "long"\nsequence_length = 32\nsamples = 50\nweights = { web = 1 }\n'
"""A run of two blends and two sequence lengths."""

DENIED = '[[denied]]\ndocuments = ["web:1", "web:77", "code:3"]\nfrom = 50\n'
DENIED += '[[denied]]\ndocuments = ["web:2"]\nfrom = 200\n'


class Words(CharacterTokenizer):
    """Each id is a character; two of them end documents and fill up samples."""

    def __init__(self, *, eod: int = 5, pad: int | None = None) -> None:
        super().__init__()
        self._eod, self._pad = eod, pad


_FIM = "fim_rate = 0.9\nfim_spm_rate = 0.5\n"
_FIM += "fim_extra_tokens = { prefix = 50001, middle = 50002, suffix = 50003 }\n"
_EOD = "eod_mask_loss = true\n"
_SFT = 'dataset = "sft"\nmixing_block = 8\n[samples]\n'

KINDS: dict[str, tuple[str, str, Any]] = {
    "plain": (HEAD, CHANGED, Words()),
    "unmixed": (HEAD + "mixing_block = 1\n", CHANGED, Words()),
    "denied": (HEAD + "mixing_block = 16\n", CHANGED + DENIED, Words()),
    "without an extra token": (HEAD + "[samples]\nadd_extra_token_to_sequence = false\n", CHANGED, Words()),
    "masked": (HEAD + 'documents = "file"\n[samples]\n' + _EOD, CHANGED, Words()),
    "masked, denied and padding ids": (HEAD + "[samples]\n" + _EOD, CHANGED + DENIED, Words(pad=70)),
    "resets": (HEAD + "[samples]\nreset_position_ids = true\nreset_attention_mask = true\n", CHANGED + DENIED, Words()),
    "packs": (HEAD + 'windows = "best_fit"\n[samples]\ninter_document_masking = true\n', CHANGED, Words()),
    "masked packs": (HEAD + 'windows = "best_fit"\n[samples]\n' + _EOD, CHANGED + DENIED, Words()),
    "fim": (HEAD + 'dataset = "fim"\n[samples]\n' + _EOD + _FIM, CHANGED + DENIED, Words()),
    "sft": (HEAD + 'dataset = "sft"\n[samples]\ncontext_parallel_size = 2\n', CHANGED, StandInTokenizer(pad=7)),
    "denied sft": (HEAD + _SFT + 'long_conversations = "drop"\n', CHANGED + DENIED, StandInTokenizer(pad=7)),
    "varlen": (HEAD + 'dataset = "varlen"\n', CHANGED + DENIED, StandInTokenizer(pad=7)),
}
"""Head and stages of `run.toml`, and the tokenizer, by name."""


def write_talks(folder: Path) -> None:
    """Writes conversations of few turns, some of them empty, untrainable, or longer than a sample."""
    random = np.random.default_rng(5)
    for name, count in (("web-0", 90), ("web-1", 40), ("code", 60)):
        talks = []
        for number in range(count):
            prompt, answer = (random.integers(1, 999, size=random.integers(1, most)).tolist() for most in (6, 9))
            answer = [] if number % 17 == 3 else answer * (1 + number % 4)
            talks.append(conversation((PROMPT, prompt), (ANSWER, answer)))
        talks[5:7] = [conversation((PROMPT, [])), conversation((ANSWER, [4]))]
        write_conversations(folder / name, talks)


def make_kind(folder: Path, name: str, *, holdout: str = "") -> Run:
    """Returns a run of a kind, over data in a folder."""
    head, stages, tokenizer = KINDS[name]
    if "sft" in name or "varlen" in name:
        write_talks(folder)
    else:
        write_data(folder)
    held = f', holdout = "{holdout}"' if holdout else ""
    sources = f'[sources]\nweb = {{ data = "web-*"{held} }}\ncode = "code"\n'
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UntrainableWarning)
        return Run.open(write_toml(folder, stages, head=head, sources=sources), tokenizer=tokenizer)


def counted_by_hand(run: Run) -> Iterator[tuple[str, int, int]]:
    """Yields source, slots and slots with loss of the sample at each position."""
    dataset, names = run.dataset(), [source.name for source in run.lock.sources]
    for position in range(run.num_samples or 0):
        sample = dataset.sample(position)
        mask = sample["loss_mask"]
        yield names[int(sample["dataset_id"])], mask.size, int((mask > 0).sum())
