"""Arguments of the trainer against its own parser and counts, in releases that come with them; and step schedules."""

import json
import sys

import numpy as np
import pytest
from tests.megatron.arguments import DEFAULTS
from tests.support import CharacterTokenizer

from tokenloom.errors import ConfigError
from tokenloom.megatron.args import (
    config_from_args,
    get_blend_and_blend_per_split,
    step_batch_size_schedule,
    train_valid_test_num_samples,
)

pytestmark = [pytest.mark.peer, pytest.mark.filterwarnings("ignore")]

MODEL = "--num-layers 2 --hidden-size 8 --num-attention-heads 2 --max-position-embeddings 64 --micro-batch-size 2"
ITERATIONS = "--train-iters 1000 --eval-interval 100 --eval-iters 5 --global-batch-size 8"
SAMPLES = "--train-samples 8100 --eval-interval 90 --eval-iters 5 --global-batch-size 8"


@pytest.fixture
def parsed(monkeypatch):
    """Parses a command line as the trainer does."""
    module = pytest.importorskip("megatron.training.arguments")

    def parse(line):
        monkeypatch.setattr(sys, "argv", ["pretrain_gpt.py", *MODEL.split(), "--seq-length", "64", *line.split()])
        return module.parse_args()

    return parse


def test_stand_ins_have_the_parsers_defaults(parsed):
    found = vars(parsed(""))
    assert {name: found[name] for name in DEFAULTS} == DEFAULTS


def test_data_are_named_alike(parsed, tmp_path, monkeypatch):
    theirs = pytest.importorskip("megatron.training.utils").get_blend_and_blend_per_split
    monkeypatch.chdir(tmp_path)
    (tmp_path / "args").write_text("30 a\n70\tb\n")
    (tmp_path / "split").write_text(json.dumps({"train": ["1", "a", "2", "b"], "valid": "c d e", "test": None}))
    lines = ["", "--data-path a", "--data-path 0.3 a 0.7 b", "--data-args-path args", "--train-data-path a b"]
    for line in [*lines, "--per-split-data-args-path split", "--valid-data-path 1 a 3 b --test-data-path c"]:
        args = parsed(line)
        blend, per_split = theirs(args)
        assert get_blend_and_blend_per_split(args) == (blend, per_split)


def test_as_many_samples_are_asked_for(parsed, monkeypatch):
    training = pytest.importorskip("megatron.training.training")
    for line in (
        ITERATIONS,
        f"{ITERATIONS} --full-validation",
        f"{ITERATIONS} --skip-train",
        f"{ITERATIONS} --start-eval-at-iter 250",
        SAMPLES,
        f"{SAMPLES} --phase-transition-iterations 600,250",
    ):
        args = parsed(line)
        ours = train_valid_test_num_samples(args)
        args.eval_global_batch_size = args.global_batch_size  # as validating them does
        args.iteration = 0
        if args.phase_transition_iterations:
            args.phase_transition_iterations = [250, 600]
        training.update_train_iters(args)
        monkeypatch.setattr(training, "get_args", lambda args=args: args)
        assert ours == tuple(training.get_train_valid_test_num_samples())


def test_parsed_arguments_are_settings(parsed):
    line = "--data-path 0.3 a 0.7 b --split 98,1,1 --fim-data --fim-rate 0.3 --dataloader-inter-document-masking"
    config = config_from_args(parsed(f"{line} --seed 7 --no-mmap-bin-files"), tokenizer=CharacterTokenizer())
    assert type(config).__name__ == "GPTFIMDatasetConfig"
    assert (config.blend, config.fim_rate, config.random_seed) == ((["a", "b"], [0.3, 0.7]), 0.3, 7)
    assert (config.mmap_bin_files, config.create_attention_mask, config.inter_document_masking) == (False, False, True)


def test_step_schedules_are_alike(rng: np.random.Generator):
    peer = pytest.importorskip("megatron.core.num_microbatches_calculator")
    if not hasattr(peer, "StepBatchsizeNumMicroBatchesCalculator"):
        pytest.skip("this version of the peer has no step schedule yet")
    num_equal = 0
    for _ in range(500):
        text = ", ".join(_item(rng, number) for number in range(rng.integers(1, 5)))
        length = [None, 1, 7, 4096][rng.integers(4)]
        try:
            theirs = peer.StepBatchsizeNumMicroBatchesCalculator(1, 1, False, 1, text, length)
        except (AssertionError, ValueError):
            with pytest.raises(ConfigError):
                step_batch_size_schedule(text, length)
            continue
        ours = step_batch_size_schedule(text, length)
        assert ours.sizes == tuple(theirs.schedule)
        for start, _ in ours.sizes:
            for consumed in (max(start - 1, 0), start, start + 1):
                theirs.update(consumed, consistency_check=False)
                assert ours.batch_size(consumed) == theirs.get_current_global_batch_size()
        num_equal += 1
    assert num_equal > 100


def _item(rng: np.random.Generator, number: int) -> str:
    """Returns an item of a schedule, rarely one that is none."""
    threshold = "0" if number == 0 else f"{rng.uniform(0, 9):.{rng.integers(5)}f}{'KMBTkmb'[rng.integers(7)]}"
    return f"{threshold}:{['8', '1.5K', '16', '8.7', 'x'][rng.choice(5, p=[0.3, 0.3, 0.2, 0.15, 0.05])]}"
