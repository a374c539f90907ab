"""Reads a tokenized dataset from a bucket, as a training job would, and prints what that took.

The endpoint and the credentials come from the environment; nothing else is set up:

    export AWS_S3_ENDPOINT_URL=https://gateway.example.org   # or AWS_ENDPOINT_URL; none for Amazon's own
    export AWS_ACCESS_KEY_ID=… AWS_SECRET_ACCESS_KEY=… AWS_DEFAULT_REGION=…
    python examples/from_a_bucket.py s3://mybucket/my_gpt_data --tokenizer tokenizer.json

Indices are kept in the local folder. With `--path-to-cache s3://mybucket/indices` whoever comes first builds and
publishes them, and everybody else builds nothing; `--ready` makes that a promise: what is missing is an error.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import tokenloom


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prefixes", nargs="+", metavar="PREFIX", help="address without .bin and .idx; or weights too")
    parser.add_argument("--tokenizer", required=True, metavar="PATH")
    parser.add_argument("--object-storage-cache-path", metavar="FOLDER", help="local folder for what is downloaded")
    parser.add_argument("--path-to-cache", metavar="FOLDER", help="folder for indices, here or in a bucket")
    parser.add_argument("--ready", action="store_true", help="all indices are built already")
    parser.add_argument("--samples", type=int, default=1000, metavar="N")
    parser.add_argument("--sequence-length", type=int, default=2048, metavar="S")
    options = parser.parse_args(arguments)

    config = tokenloom.GPTDatasetConfig(
        random_seed=1234,
        sequence_length=options.sequence_length,
        blend=tokenloom.get_blend_from_list(options.prefixes),
        split="99,1,0",
        tokenizer=tokenloom.load_tokenizer(options.tokenizer),
        object_storage=tokenloom.ObjectStorageSettings(retries=3),
        object_storage_cache_path=options.object_storage_cache_path,
        path_to_cache=options.path_to_cache,
        fast_cache_load=options.ready,
        mmap_bin_files=False,
    )
    train, valid, _ = tokenloom.BlendedMegatronDatasetBuilder(
        tokenloom.GPTDataset, [options.samples, 10, 0], lambda: True, config
    ).build()
    print(f"{len(train)} samples for training, {len(valid)} for validation")
    sampler = tokenloom.MegatronPretrainingSampler(len(train), 0, 4, data_parallel_rank=0, data_parallel_size=1)
    loader = tokenloom.build_dataloader(train, sampler)
    for number, batch in enumerate(loader):
        if number < 3:
            print(f"batch {number}: tokens {tuple(batch['tokens'].shape)}, {int(batch['loss_mask'].sum())} with loss")
    for source, statistics in tokenloom.loader_statistics(loader).items():
        print(f"{source}: {statistics.bytes_used} bytes used, {statistics.requests} requests")


if __name__ == "__main__":
    main()
