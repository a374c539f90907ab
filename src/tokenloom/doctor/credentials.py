"""Which credentials for object stores are found, in which order they count, and until when: never what they are."""

from __future__ import annotations

import base64
import configparser
import importlib.util
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs

from tokenloom.doctor.check import Asked, Finding, Verdict
from tokenloom.storage.endpoint import VARIABLES
from tokenloom.storage.secrets import redacted

_SOON_SECONDS = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A way to credentials: variables that belong together, or a file.

    Attributes:
        name: what it is called.
        variables: those that must be set, all of them.
        paths: files that must be there, one of them; `~` is the home folder.
        needs: a package that must be installed to go this way, and the extra that brings it.
    """

    name: str
    variables: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    needs: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cloud:
    """A store, and the ways to its credentials.

    Attributes:
        subject: its name.
        schemes: schemes of its addresses.
        prefixes: what the names of its variables begin with.
        ways: ways to credentials, the first that is there counts.
        told: variables whose values are no secrets.
        hint: what to do where there is none.
    """

    subject: str
    schemes: tuple[str, ...]
    prefixes: tuple[str, ...]
    ways: tuple[Way, ...]
    told: tuple[str, ...]
    hint: str


_BOTO3 = ("boto3", "aws")

CLOUDS: tuple[Cloud, ...] = (
    Cloud(
        subject="S3",
        schemes=("s3",),
        prefixes=("AWS_",),
        ways=(
            Way(name="key", variables=("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")),
            Way(name="profile", variables=("AWS_PROFILE",), needs=_BOTO3),
            Way(name="token file", variables=("AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN")),
            Way(name="files of AWS", paths=("~/.aws/credentials", "~/.aws/config"), needs=_BOTO3),
            Way(name="container", variables=("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",)),
            Way(name="container", variables=("AWS_CONTAINER_CREDENTIALS_FULL_URI",)),
        ),
        told=(*VARIABLES, "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_ALLOW_HTTP"),
        hint="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or `pip install 'tokenloom[aws]'` for profiles; without "
        "these the machine's own role is asked for",
    ),
    Cloud(
        subject="Google",
        schemes=("gs",),
        prefixes=("GOOGLE_",),
        ways=(
            Way(name="service account", variables=("GOOGLE_SERVICE_ACCOUNT",)),
            Way(name="service account", variables=("GOOGLE_SERVICE_ACCOUNT_PATH",)),
            Way(name="service account's key", variables=("GOOGLE_SERVICE_ACCOUNT_KEY",)),
            Way(name="credentials file", variables=("GOOGLE_APPLICATION_CREDENTIALS",)),
            Way(name="file of gcloud", paths=("~/.config/gcloud/application_default_credentials.json",)),
        ),
        told=("GOOGLE_BASE_URL", "GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT_PATH"),
        hint="set GOOGLE_APPLICATION_CREDENTIALS to a file, or run `gcloud auth application-default login`",
    ),
    Cloud(
        subject="Azure",
        schemes=("az",),
        prefixes=("AZURE_",),
        ways=(
            Way(name="account key", variables=("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY")),
            Way(name="client secret", variables=("AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET")),
            Way(name="token file", variables=("AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_FEDERATED_TOKEN_FILE")),
            Way(name="shared access signature", variables=("AZURE_STORAGE_SAS_TOKEN",)),
        ),
        told=("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT", "AZURE_STORAGE_ACCOUNT_NAME"),
        hint="set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or AZURE_STORAGE_SAS_TOKEN",
    ),
)


def check_credentials(asked: Asked) -> Iterator[Finding]:
    """Yields what is found for each store that is asked for, or that something is set for."""
    wanted = {address.partition("://")[0] for address in asked.addresses}
    findings = [finding_of(cloud, os.environ, is_wanted=not wanted.isdisjoint(cloud.schemes)) for cloud in CLOUDS]
    found = [finding for finding in findings if finding is not None]
    yield from found
    if not found:
        yield Finding(subject="none", text="no setting of S3, Google Cloud Storage or Azure was found")


def finding_of(cloud: Cloud, environment: Mapping[str, str], *, is_wanted: bool) -> Finding | None:
    """Returns what is found for a store; None where nothing is set and nobody asks.

    Args:
        cloud: the store.
        environment: the variables.
        is_wanted: whether an address of it is named.
    """
    set_here = sorted(name for name in environment if name.startswith(cloud.prefixes) and environment[name])
    found = [(way, where) for way in cloud.ways if (where := _where(way, environment))]
    if not set_here and not found and not is_wanted:
        return None
    told = {name: redacted(environment[name]) for name in cloud.told if environment.get(name)}
    words = [f"{name}={value}" for name, value in told.items()]
    silent = [name for name in set_here if name not in told]
    facts: dict[str, Any] = {
        "ways": [{"name": way.name, "where": where} for way, where in found],
        "settings": told,
        "set": silent,
        "expires": None,
    }
    if not found:
        text = "; ".join(["no credentials", *words, *([f"set: {', '.join(silent)}"] if silent else [])])
        verdict = Verdict.warning if is_wanted or _are_half(cloud, environment) else Verdict.ok
        hint = None if verdict is Verdict.ok else cloud.hint
        return Finding(subject=cloud.subject, verdict=verdict, text=text, hint=hint, facts=facts)
    (way, where), *others = found
    text = f"{way.name} ({where})"
    if others:
        text += f", before {', '.join(f'{other.name} ({place})' for other, place in others)}"
    if way.needs is not None and importlib.util.find_spec(way.needs[0]) is None:
        hint = f"`pip install 'tokenloom[{way.needs[1]}]'`: nothing else reads it"
        text += f", which needs {way.needs[0]}"
        return Finding(subject=cloud.subject, verdict=Verdict.problem, text=text, hint=hint, facts=facts)
    expires = _expiry(environment)
    if expires is None:
        return Finding(subject=cloud.subject, text="; ".join([text, *words]), facts=facts)
    facts["expires"] = expires.isoformat()
    left = (expires - datetime.now(UTC)).total_seconds()
    ends = f"{'ended' if left < 0 else 'until'} {expires:%Y-%m-%d %H:%M} UTC"
    verdict = Verdict.problem if left < 0 else Verdict.warning if left < _SOON_SECONDS else Verdict.ok
    hint = None if verdict is Verdict.ok else "get new ones before a run begins that takes longer"
    return Finding(subject=cloud.subject, verdict=verdict, text="; ".join([text, ends, *words]), hint=hint, facts=facts)


def _where(way: Way, environment: Mapping[str, str]) -> str:
    """Returns by what a way is open; nothing if it is not."""
    if way.variables:
        return " and ".join(way.variables) if all(environment.get(name) for name in way.variables) else ""
    home = environment.get("HOME", "~")
    for path in way.paths:
        if os.path.isfile(path.replace("~", home, 1)) and _has_profiles(path.replace("~", home, 1)):
            return path
    return ""


def _has_profiles(path: str) -> bool:
    """Whether a file of settings has any section; others are taken as they are."""
    if path.endswith(".json"):
        return True
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        return bool(parser.read(path, encoding="utf-8") and parser.sections())
    except (configparser.Error, UnicodeDecodeError, OSError):
        return False


def _are_half(cloud: Cloud, environment: Mapping[str, str]) -> bool:
    """Whether one of several variables is set that belong together."""
    return any(environment.get(name) for way in cloud.ways if len(way.variables) > 1 for name in way.variables)


def _expiry(environment: Mapping[str, str]) -> datetime | None:
    """Returns when credentials end, as far as they say so: as a variable, in a signature, or in a token's file."""
    if end := environment.get("AWS_CREDENTIAL_EXPIRATION"):
        return _date(end)
    if found := parse_qs(environment.get("AZURE_STORAGE_SAS_TOKEN", "").lstrip("?")).get("se"):
        return _date(found[0])
    for name in ("AWS_WEB_IDENTITY_TOKEN_FILE", "AZURE_FEDERATED_TOKEN_FILE"):
        if path := environment.get(name):
            return _end_of_token(path)
    return None


def _date(text: str) -> datetime | None:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _end_of_token(path: str) -> datetime | None:
    """Returns the end that a JSON web token names; None where it cannot be told."""
    try:
        with open(path, encoding="ascii") as file:
            payload = file.read(1 << 16).split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        return datetime.fromtimestamp(claims["exp"], UTC)
    except (OSError, ValueError, LookupError, TypeError):
        return None
