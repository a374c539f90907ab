"""Optional packages: which extras are there, in which versions, and what the others would be for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata

from tokenloom.doctor.check import Asked, Finding, Verdict
from tokenloom.megatron.versions import version_numbers

_PURPOSES = {
    "torch": "batches as tensors, and loaders with processes",
    "tokenizers": "tokenizers of Hugging Face, SentencePiece and tiktoken, and fast engines for them",
    "preprocess": "`tokenloom preprocess` at full speed, and compressed input",
    "sentences": "`--split-sentences`",
    "ray": "jobs on a Ray cluster",
    "hf": "`datasets` of Hugging Face, and `hf://` input",
    "chat": "`tokenloom preprocess-chat`",
    "parquet": "Parquet and Arrow input",
    "plot": "pictures",
    "explore": "`tokenloom explore`",
    "s3": "data in S3, Google Cloud Storage, Azure and over HTTP",
    "aws": "profiles, single sign-on and roles of AWS",
    "msc": "addresses of the Multi-Storage Client",
}
"""What an extra is for. One that is not named here is told without it."""

_NOT_FOR_USERS = frozenset({"all", "test", "fuzz", "dev", "docs", "adapters"})
_REQUIREMENT = re.compile(r"([\w.-]+)(?:\[[^]]*\])?\s*(?:[>=]=\s*([0-9.]+))?[^;]*;.*extra == ['\"](\S+)['\"]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """A package that an extra brings.

    Attributes:
        package: its name.
        at_least: its oldest version; empty for any.
        version: the version that is installed; None if it is not.
    """

    package: str
    at_least: str
    version: str | None

    @property
    def is_old(self) -> bool:
        """Whether an older version is installed than the extra asks for."""
        return self.version is not None and version_numbers(self.version) < version_numbers(self.at_least)


def check_extras(_: Asked) -> Iterator[Finding]:
    """Yields each extra, and what it would be for where it is not there."""
    for extra, requirements in extras_of(metadata.requires("tokenloom") or []).items():
        yield finding_of(extra, requirements)


def extras_of(lines: list[str]) -> dict[str, list[Requirement]]:
    """Returns what each extra for users brings itself, of lines such as `torch>=2.13; extra == "torch"`.

    What it takes from other extras of ours is told there.
    """
    extras: dict[str, list[Requirement]] = {}
    for line in lines:
        found = _REQUIREMENT.match(line)
        if found is None or found[3] in _NOT_FOR_USERS or found[1] == "tokenloom":
            continue
        requirement = Requirement(package=found[1], at_least=found[2] or "", version=_version(found[1]))
        extras.setdefault(found[3], []).append(requirement)
    return extras


def finding_of(extra: str, requirements: list[Requirement]) -> Finding:
    """Returns what is there of an extra: all, some, or nothing, which is well where nobody needs it."""
    there = [each for each in requirements if each.version is not None]
    missing = [each.package for each in requirements if each.version is None]
    old = [f"{each.package} {each.version} is older than {each.at_least}" for each in there if each.is_old]
    facts = {"packages": {each.package: each.version for each in requirements}, "missing": missing, "old": old}
    install = f"`pip install 'tokenloom[{extra}]'`"
    purpose = _PURPOSES.get(extra, "")
    if not there:
        return Finding(
            subject=extra, text="not installed" + (f"; brings {purpose}" if purpose else ""), hint=install, facts=facts
        )
    text = ", ".join(f"{each.package} {each.version}" for each in there)
    if missing:
        text += f"; without {', '.join(missing)}"
    if old or missing:
        text = "; ".join([text, *old])
        return Finding(
            subject=extra,
            verdict=Verdict.warning,
            text=text,
            hint=install + (f", for {purpose}" if purpose else ""),
            facts=facts,
        )
    return Finding(subject=extra, text=text, facts=facts)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
