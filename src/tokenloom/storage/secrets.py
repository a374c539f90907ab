"""Keeps secrets in addresses out of files, messages, names made by hashing, and stored pickles.

The query string of an `http(s)` address may contain a signature. `admit` removes the query string from an address that
a user passes, and stores the string in this process; clients call `query_of` when they send a request. A query string
is sent for its own object and for the other files of the same dataset.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from urllib.parse import parse_qsl

from tokenloom.errors import ConfigError
from tokenloom.forks import READING_LOCK

_SUFFIXES = (".bin", ".idx", ".catalogue")
_SIGNING = re.compile(
    r"x-(amz|goog|oss|cos|obs)-.*|awsaccesskeyid|googleaccessid|ossaccesskeyid|signature|sig|policy|key-pair-id|expires?"
    r"|e|token|.*[-_]token|s[vreptsidk]|srt?|spr|st|sk[a-z]+|hmac|hdnts|verify|response-.*",
    re.IGNORECASE,
)
"""Names of query parameters that do not name an object: clouds and content networks sign addresses with them."""

_USER = re.compile(r"(?<=://)[^\s/?#'\"`<>]*@")
_USER_WITH_SLASH = re.compile(r"(?<=://)[^\s/?#:@'\"`<>]+:(?!\d+(?:/|$))[^\s@'\"`<>]*@")
_QUERY = re.compile(r"(://[^\s?'\"`<>]*\?)[^\s'\"`<>)]+")
_DEBUGGED = re.compile(r"((?:password|query|username): (?:Some\()?)\"[^\"]*\"")
_SECRET_VARIABLE = re.compile(r"(AWS|AZURE|GOOGLE|GCS|HF|MSC)_.*(SECRET|TOKEN|PASSWORD|KEY|SAS|CREDENTIAL)")
_SHORTEST_SECRET = 8  # in characters; shorter values of environment variables may be ordinary words

_queries: dict[str, str] = {}


def admit(path: str) -> str:
    """Stores the query string ("?…") of an address; returns the address without the string, other paths unchanged.

    `ConfigError` if the address contains a user or password, or if the query string and an earlier query string of the
    same address name different objects.
    """
    scheme, separator, rest = path.partition("://")
    if not separator:
        return path
    place = rest.partition("/")[0].partition("?")[0]
    _, colon, port = place.rpartition(":")
    is_odd = colon and not port.isdigit() and not place.endswith("]")  # a password may contain a slash
    if "@" in place or (is_odd and "@" in rest):
        host = rest.rpartition("@")[2].partition("/")[0].partition("?")[0]
        hint = "set credentials in the environment variables or files of the store's client, or sign the address"
        raise ConfigError(f"`{scheme}://…@{host}/…`: the address must not contain a user or password", hint=hint)
    if scheme not in ("http", "https") or "?" not in rest:
        return path
    address, _, query = path.partition("#")[0].partition("?")
    for suffix in _SUFFIXES:  # callers append a suffix to the whole address
        if query.endswith(suffix):
            address, query = address + suffix, query.removesuffix(suffix)
    if query:
        remember({address: query})
    return address


def remember(queries: Mapping[str, str]) -> None:
    """Stores the query strings of signed URLs, by address; a renewed query string replaces the earlier string."""
    global _queries
    with READING_LOCK:  # another thread may fork while this thread unpickles a dataset
        for address, query in queries.items():
            known = _queries.get(address)
            if known is not None and _naming(known) != _naming(query):
                message = f"`{address}?…`: two addresses differ only in their queries, which must not name objects"
                raise ConfigError(message, hint="give each object its own address, and use queries only for signatures")
        _queries = {**_queries, **queries}


def query_of(address: str) -> str | None:
    """Returns the query string to send with an address: its own, else one of a file of the same dataset, else None."""
    head, slash, name = address.rpartition("/")
    found = _queries.get(address)
    while _queries and found is None and "." in name:
        name = name.rpartition(".")[0]
        near = (_queries.get(f"{head}{slash}{name}{suffix}") for suffix in ("", *_SUFFIXES))
        found = next(filter(None, near), None)
    return found


def is_signed_alike(address: str) -> bool:
    """Returns whether an address has no query string of its own, but uses that of another file of its dataset."""
    return address not in _queries and query_of(address) is not None


def known_queries() -> dict[str, str]:
    """Returns all stored query strings by address; pass the strings to other processes only in memory."""
    return dict(_queries)


def queries_for_child() -> dict[str, str]:
    """Returns all query strings while `multiprocessing` starts a process; else {}: pickles may be stored in files."""
    from multiprocessing.context import get_spawning_popen  # slow to import

    return known_queries() if _queries and get_spawning_popen() is not None else {}


def redacted(text: str) -> str:
    """Replaces secrets of environment variables, and the user, password and query of each address, with "…"."""
    for secret in _secrets():
        text = text.replace(secret, "…")
    text = _USER_WITH_SLASH.sub("…@", _USER.sub("…@", text))
    return _DEBUGGED.sub(r'\1"…"', _QUERY.sub(r"\1…", text))


def clean_cause(error: BaseException) -> BaseException | None:
    """Returns `error`, or None if its text or the text of one of its causes contains a secret."""
    each: BaseException | None = error
    while each is not None:
        text = f"{each} {each!r}"
        if redacted(text) != text:
            return None
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)
    return error


def endpoint_of(variable: str) -> str | None:
    """Returns the endpoint in an environment variable, or None; `ConfigError` if the endpoint contains secrets."""
    endpoint = os.environ.get(variable) or None
    rest = (endpoint or "").partition("://")[2]
    if "@" in rest or "?" in rest:
        hint = "set credentials in their own variables, such as AWS_SECRET_ACCESS_KEY"
        raise ConfigError(f"{variable}: the endpoint must not contain a user, a password or a query", hint=hint)
    return endpoint


def _naming(query: str) -> list[tuple[str, str]]:
    """Returns the query parameters that may name an object, sorted."""
    return sorted(pair for pair in parse_qsl(query, keep_blank_values=True) if not _SIGNING.fullmatch(pair[0]))


def _secrets() -> list[str]:
    named = [value for name, value in os.environ.items() if _SECRET_VARIABLE.fullmatch(name)]
    values = [value for query in _queries.values() for _, value in parse_qsl(query)]
    found = {each for each in (*named, *_queries.values(), *values) if len(each) >= _SHORTEST_SECRET}
    return sorted(found, key=len, reverse=True)
