"""Fetching samples, in one process without a loader."""

from __future__ import annotations

from pathlib import Path

from harness.row import LIMIT, OURS, Row, Scale, Side

from rows.data import TYPICAL_TOKENS, write_corpus
from rows.fairness import NO_IMPORTS, PROCESSES, WARM

PEER = "megatron-core"
SETTINGS = {
    "plain": {},
    "resets": {"reset_position_ids": True, "eod_mask_loss": True},
    "mask": {
        "reset_position_ids": True,
        "reset_attention_mask": True,
        "eod_mask_loss": True,
        "create_attention_mask": True,
    },
    "documents": {"inter_document_masking": True},
}
MEANINGS = {
    "plain": "tokens, labels, loss mask and position ids",
    "resets": "the same, with positions that restart after each end of document and no loss there",
    "mask": "the same with resets, and a dense attention mask that does not cross documents",
    "documents": "the same, and the boundaries of documents",
}


def sample_row(
    way: str, setting: str, length: int, mean_tokens: int, *, num_tokens: int, rounds: int, seconds: float
) -> Row:
    """Returns one row; `way` is single or batched, documents are of `mean_tokens` in the mean."""
    ours = {"single": "dataset[k]", "batched": "dataset.batch"}[way]
    plural = {"single": "one by one", "batched": "in batches"}[way]
    # The released peer has no inter-document masking: it makes plain samples, which is less.
    peer_setting = "plain" if setting == "documents" else setting

    def side(name: str, library: str, way: str, chosen: str = setting) -> Side:
        arguments = {
            "side": OURS if library == LIMIT else library,
            "way": way,
            "settings": SETTINGS[chosen],
            "length": length,
            "seconds": seconds,
        }
        return Side(name=name, library=library, script="fetch.py", arguments=arguments)

    return Row(
        job="samples",
        name=f"samples {plural}, {setting}, S = {length}, documents of {mean_tokens}",
        part=f"mean-{mean_tokens}",
        compares=f"`GPTDataset`: random samples {plural}, as torch tensors: {MEANINGS[setting]}; documents of "
        f"{mean_tokens} tokens in the mean",
        fairness="Same pair, same cached indices, same positions; the tensors of the first samples are compared. "
        f"{WARM} {NO_IMPORTS} {PROCESSES} Samples are dropped at once, as a training loop drops them, but for those "
        "that fill arrays which exist. The peer has no batched fetch: its samples are not even stacked. Its cache of "
        "masks, right for the first sample only, stays on."
        + (" It makes plain samples here, as it lacks the setting." if setting == "documents" else ""),
        limit="copying the bytes of the same batches into arrays that exist already, in one thread"
        + ("; a mask that is made is not read, so that making it can be above" if setting == "mask" else ""),
        unit="samples",
        rounds=rounds,
        sides=(
            side(ours, OURS, way),
            *([side("dataset.batch(out=…)", OURS, "given")] if way == "batched" else []),
            side("megatron dataset[k]", PEER, "single", peer_setting),
            side("memcpy", LIMIT, "copy"),
        ),
        prepare=lambda folder: write_corpus(Path(folder) / "corpus", num_tokens, mean_tokens),
        same=(ours, "megatron dataset[k]"),
    )


def rows(scale: Scale) -> list[Row]:
    """Returns the rows of a mode."""
    cases = [
        (way, "plain", length, mean)
        for way in ("single", "batched")
        for length in scale.lengths
        for mean in scale.mean_tokens
    ]
    cases += [("batched", "mask", scale.lengths[0], TYPICAL_TOKENS)]
    sizes = {"num_tokens": scale.corpus_tokens, "rounds": scale.rounds, "seconds": scale.seconds}
    return [sample_row(*case, **sizes) for case in cases]
