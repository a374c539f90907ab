"""From text files to the dataset of a blend, with little more than their names.

    python examples/text_to_blend.py books.txt:0.7 web.txt:0.3 --tokenizer tokenizer.json --output FOLDER

Each line of a text file is a document. The blend is written in every form that is taken.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import tokenloom


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="+", metavar="FILE:WEIGHT")
    parser.add_argument("--tokenizer", required=True, metavar="PATH")
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--sequence-length", type=int, default=1024, metavar="S")
    options = parser.parse_args(arguments)

    options.output.mkdir(parents=True, exist_ok=True)
    weights = {}
    for text in options.texts:
        path, _, weight = text.rpartition(":")
        prefix = options.output / Path(path).stem
        settings = tokenloom.CorpusSettings(input_format="text-lines", append_eod=True)
        tokenloom.preprocess_corpus([path], prefix, tokenloom.load_tokenizer(options.tokenizer), settings)
        weights[f"{prefix}_text_document"] = float(weight)

    # The tokenizer is the one that the manifest names.
    dataset = tokenloom.load(weights, sequence_length=options.sequence_length)
    print(f"{len(dataset)} samples, {[int((dataset.dataset_index == k).sum()) for k in range(len(weights))]} of each")

    # The same blend as pairs, by turns, as a file of arguments, and as the dataset's configuration holds it.
    pairs = [[weight, name] for name, weight in weights.items()]
    turns = [word for weight, name in pairs for word in (str(weight), name)]
    (options.output / "blend.txt").write_text(" ".join(turns))
    forms = [
        tokenloom.get_blend_from_list(pairs),
        tokenloom.get_blend_from_list(turns),
        tokenloom.parse_blend(args_file=options.output / "blend.txt")["blend"],
        dataset.config.blend,
    ]
    assert all(form == forms[0] for form in forms)
    print(f"{len(forms)} forms of one blend: {forms[0][1]}")


if __name__ == "__main__":
    main()
