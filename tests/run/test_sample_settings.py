"""The `[samples]` of a run, as the dataset classes know them."""

from __future__ import annotations

from dataclasses import fields

import pytest
from tests.run.texts import SMALL, error_of

from tokenloom.run.sample_settings import KINDS, NOT_HERE, WITHOUT_EFFECT
from tokenloom.run.settings import parse_run


def test_settings_that_exclude_each_other_are_told_by_the_dataset_class():
    error = error_of(SMALL + "[samples]\nreset_position_ids = true\ninter_document_masking = true\n")
    assert "`inter_document_masking` and `reset_position_ids` exclude each other" in error.message
    assert "run.toml:10:" in error.message


def test_settings_of_other_datasets():
    fim = 'fim_rate = 0.5\nfim_spm_rate = 0.5\nfim_extra_tokens = { prefix = "<p>", middle = "<m>", suffix = "<s>" }\n'
    settings = parse_run('dataset = "fim"\n' + SMALL + "[samples]\n" + fim, path="run.toml")
    assert settings.samples["fim_extra_tokens"] == {"prefix": "<p>", "middle": "<m>", "suffix": "<s>"}
    assert settings.samples["fim_rate"] == 0.5
    error = error_of('dataset = "fim"\n' + SMALL + "[samples]\n" + fim.replace("0.5", "1.5", 1))
    assert "run.toml:10: expected `fim_rate` in [0, 1], found 1.5\n    fim_rate = 1.5" in error.message
    sft = 'dataset = "sft"\n' + SMALL + '[samples]\ntrain_on = "everything"\ncontext_parallel_size = 2\n'
    samples = parse_run(sft, path="run.toml").samples
    assert (samples["train_on"], samples["context_parallel_size"]) == ("everything", 2)
    assert "out of 'answers'" in error_of(sft.replace("everything", "nothing")).message
    assert "builds" not in (error_of(sft.replace("train_on", "schema")).hint or "")
    error = error_of('windows = "best_fit"\n' + sft)
    assert error.message.startswith('run.toml:1: expected no `windows` for dataset "sft"')


@pytest.mark.parametrize("setting", NOT_HERE)
def test_settings_that_are_none_of_samples_are_refused_with_where_they_belong(setting):
    kind = next(name for name in reversed(KINDS) if setting in {field.name for field in fields(KINDS[name])})
    error = error_of(f'dataset = "{kind}"\n{SMALL}[samples]\n{setting} = 1\n')
    assert error.message.startswith(f"run.toml:10: expected [samples] without `{setting}`")
    assert error.hint == NOT_HERE[setting]


@pytest.mark.parametrize("setting", WITHOUT_EFFECT)
def test_settings_without_effect_are_settings(setting):
    assert parse_run(f"{SMALL}[samples]\n{setting} = true\n", path="run.toml").samples[setting] is True


def test_what_equals_a_default_is_left_out():
    said = (
        "[samples]\ninter_document_masking = false\nadd_extra_token_to_sequence = true\ncreate_attention_mask = true\n"
    )
    assert set(parse_run(SMALL + said, path="run.toml").samples) == {
        *("create_attention_mask", "eod_mask_loss", "reset_attention_mask", "reset_position_ids"),
    }
    assert parse_run(SMALL + said, path="run.toml").samples["create_attention_mask"] is True
