"""Secrets in addresses: never written, printed, hashed into a name or pickled to a file.

The query of an `http(s)` address may hold a signature. `admit` removes it where a user names the address and stores it
in this process; `query_of` returns it to the client that sends a request. It is valid for its object, and for files of
the same dataset beside it.
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
"""Parameters that sign an address and name no object, of clouds and content networks."""

_USER = re.compile(r"(?<=://)[^\s/?#'\"`<>]*@")
_USER_WITH_SLASH = re.compile(r"(?<=://)[^\s/?#:@'\"`<>]+:(?!\d+(?:/|$))[^\s@'\"`<>]*@")
_QUERY = re.compile(r"(://[^\s?'\"`<>]*\?)[^\s'\"`<>)]+")
_DEBUGGED = re.compile(r"((?:password|query|username): (?:Some\()?)\"[^\"]*\"")
_SECRET_VARIABLE = re.compile(r"(AWS|AZURE|GOOGLE|GCS|HF|MSC)_.*(SECRET|TOKEN|PASSWORD|KEY|SAS|CREDENTIAL)")
_SHORTEST_SECRET = 8
"""Characters: shorter values of the environment may be ordinary words."""

_queries: dict[str, str] = {}


def admit(path: str) -> str:
    """Returns an address without its query, which it stores; returns other paths unchanged.

    Raises:
        ConfigError: the address has a user or a password, or names another object than an earlier one.
    """
    scheme, separator, rest = path.partition("://")
    if not separator:
        return path
    place = rest.partition("/")[0].partition("?")[0]
    _, colon, port = place.rpartition(":")
    is_odd = colon and not port.isdigit() and not place.endswith("]")  # a password may have a slash
    if "@" in place or (is_odd and "@" in rest):
        host = rest.rpartition("@")[2].partition("/")[0].partition("?")[0]
        hint = "give credentials in the variables or files of the store's client, or sign the address"
        raise ConfigError(f"`{scheme}://…@{host}/…`: an address must not have user and password", hint=hint)
    if scheme not in ("http", "https") or "?" not in rest:
        return path
    address, _, query = path.partition("#")[0].partition("?")
    for suffix in _SUFFIXES:  # a caller appended it to the whole address
        if query.endswith(suffix):
            address, query = address + suffix, query.removesuffix(suffix)
    if query:
        remember({address: query})
    return address


def remember(queries: Mapping[str, str]) -> None:
    """Stores the queries of addresses; a renewed signature replaces an earlier one."""
    global _queries
    with READING_LOCK:  # datasets are unpickled while others fork
        for address, query in queries.items():
            known = _queries.get(address)
            if known is not None and _naming(known) != _naming(query):
                message = f"two objects are named `{address}?…`, and only their queries tell them apart"
                raise ConfigError(message, hint="give each an address of its own; a query is for signatures")
        _queries = {**_queries, **queries}


def query_of(address: str) -> str | None:
    """Returns the query to send for an address, its own or that of a file of its dataset, or None."""
    head, slash, name = address.rpartition("/")
    found = _queries.get(address)
    while _queries and found is None and "." in name:
        name = name.rpartition(".")[0]
        near = (_queries.get(f"{head}{slash}{name}{suffix}") for suffix in ("", *_SUFFIXES))
        found = next(filter(None, near), None)
    return found


def is_signed_alike(address: str) -> bool:
    """Whether the query of an address is that of its dataset, or of another file of it."""
    return address not in _queries and query_of(address) is not None


def known_queries() -> dict[str, str]:
    """Returns the queries of all addresses, to pass to a process of ours in memory."""
    return dict(_queries)


def queries_for_child() -> dict[str, str]:
    """Returns them while a process of `multiprocessing` is being started; else none, as pickles may end in files."""
    from multiprocessing.context import get_spawning_popen  # slow to import

    return known_queries() if _queries and get_spawning_popen() is not None else {}


def redacted(text: str) -> str:
    """Returns a text without users, passwords and queries of addresses, and without keys of the environment.

    Example:
        >>> redacted("GET http://me:word@host/key?sig=abc failed")
        'GET http://…@host/key?… failed'
    """
    for secret in _secrets():
        text = text.replace(secret, "…")
    text = _USER_WITH_SLASH.sub("…@", _USER.sub("…@", text))
    return _DEBUGGED.sub(r'\1"…"', _QUERY.sub(r"\1…", text))


def clean_cause(error: BaseException) -> BaseException | None:
    """Returns a library's error as the cause of ours; None if its text, or that of a cause, holds a secret."""
    each: BaseException | None = error
    while each is not None:
        text = f"{each} {each!r}"
        if redacted(text) != text:
            return None
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)
    return error


def endpoint_of(variable: str) -> str | None:
    """Returns the endpoint in an environment variable, checked for secrets, or None."""
    endpoint = os.environ.get(variable) or None
    rest = (endpoint or "").partition("://")[2]
    if "@" in rest or "?" in rest:
        hint = "set credentials in their own variables, such as AWS_SECRET_ACCESS_KEY"
        raise ConfigError(f"{variable}: an endpoint must not have a user, a password or a query", hint=hint)
    return endpoint


def _naming(query: str) -> list[tuple[str, str]]:
    """Returns the parameters of a query that may name an object."""
    return sorted(pair for pair in parse_qsl(query, keep_blank_values=True) if not _SIGNING.fullmatch(pair[0]))


def _secrets() -> list[str]:
    named = [value for name, value in os.environ.items() if _SECRET_VARIABLE.fullmatch(name)]
    values = [value for query in _queries.values() for _, value in parse_qsl(query)]
    found = {each for each in (*named, *_queries.values(), *values) if len(each) >= _SHORTEST_SECRET}
    return sorted(found, key=len, reverse=True)
