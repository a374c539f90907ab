"""`tokenloom run init`: the first run.toml."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, ClassVar

from tokenloom.cli.json_output import print_json
from tokenloom.cli.options import Either, OneOf, Written
from tokenloom.cli.values import share, token_count
from tokenloom.errors import ConfigError
from tokenloom.megatron.run_arguments import TakenArguments, read_arguments, take_arguments
from tokenloom.run.toml_edit import RunDraft, draft_text, weighted_entries
from tokenloom.setting_types import Count, Number
from tokenloom.storage.publishing import make_folder_of
from tokenloom.storage.resolve import open_pending

_DEFAULT_LENGTH = 4096
_SAID = "what the run says; before what an arguments file says"


@dataclass(frozen=True, kw_only=True)
class Options:
    """Write a run.toml with comments: from a blend as Megatron has it, from the arguments of a Megatron run, or from
    folders, each of which becomes a source. Data without weights are read in proportion to their tokens: once, if no
    size is given.

    Attributes:
        folders: folders, globs or prefixes, a source each.
        data_path: prefixes, globs or folders; or a weight before each.
        args_file: arguments of a Megatron run: a script, a list of arguments, or YAML.
        output: file to write.
        overwrite: replace a file that is there.
        sequence_length: tokens per sample (default 4096).
        tokens: tokens of the run, such as 900B.
        samples: samples of the run.
        seed: seed of the order (default 1234).
        tokenizer: the tokenizer that made the data.
        holdout: share of each to hold out, such as "0.1%".
        json: print one JSON object: path, data, not_taken and others.
    """

    EITHER: ClassVar[Either] = (("tokens", "samples"), ("folders", "data_path"))
    ONE_OF: ClassVar[OneOf] = {"--data-path, --args-file, or folders": ("folders", "data_path", "args_file")}

    folders: Annotated[tuple[str, ...], Written(metavar="FOLDER", is_positional=True)] = ()
    data_path: Annotated[tuple[str, ...], Written(metavar="ENTRY")] = ()
    args_file: Annotated[str | None, Written(metavar="FILE")] = None
    output: Annotated[str, Written(names=("-o", "--output"), metavar="FILE")] = "run.toml"
    overwrite: Annotated[bool, Written(names=("--overwrite", "--force"))] = False
    sequence_length: Annotated[Count | None, Written(metavar="S", group=_SAID)] = None
    tokens: Annotated[int | None, Written(parse=token_count, group=_SAID)] = None
    samples: Annotated[int | None, Written(parse=token_count, group=_SAID)] = None
    seed: Annotated[Number | None, Written(group=_SAID)] = None
    tokenizer: Annotated[str | None, Written(metavar="PATH", group=_SAID)] = None
    holdout: Annotated[Fraction | None, Written(metavar="SHARE", parse=share, group=_SAID)] = None
    json: bool = False


def run(options: Options) -> int:
    """Writes the file, and says what was not taken over."""
    taken = TakenArguments() if options.args_file is None else take_arguments(read_arguments(options.args_file))
    entries = options.data_path or options.folders or taken.entries
    if not entries:
        message = f"`{options.args_file}`: expected `--data-path`, found none"
        raise ConfigError(message, hint="give `--data-path` yourself")
    data, weights = weighted_entries(entries)
    is_sized = options.tokens is not None or options.samples is not None
    draft = RunDraft(
        data=data,
        weights=weights,
        sequence_length=options.sequence_length or taken.sequence_length or _DEFAULT_LENGTH,
        tokens=options.tokens,
        samples=options.samples if is_sized else taken.samples,
        seed=next((seed for seed in (options.seed, taken.seed) if seed is not None), 1234),
        tokenizer=options.tokenizer or taken.tokenizer,
        holdout=options.holdout,
        settings=taken.settings,
    )
    text = draft_text(draft, path=options.output)
    if os.path.lexists(options.output) and not options.overwrite:
        message = f"expected no file `{options.output}`, found one"
        raise ConfigError(message, hint="give another name with --output, or --overwrite to replace it")
    make_folder_of(options.output)
    with open_pending(options.output) as file:
        file.write(text.encode())
    if options.json:
        print_json(
            {
                "path": options.output,
                "data": data,
                "not_taken": [{"argument": name, "reason": reason} for name, reason in taken.not_taken],
                "others": taken.others,
            }
        )
        return 0
    for name, reason in taken.not_taken:
        print(f"not taken over: --{name}: {reason}", file=sys.stderr)
    if taken.others:
        print(f"not about data: {', '.join(f'--{name}' for name in taken.others)}", file=sys.stderr)
    print(f"wrote {options.output}: look at it, then run `tokenloom run lock {options.output}`")
    return 0
