"""Finds secrets in texts that are recorded or printed: known ones, and what looks like one.

Secrets are removed from the words of a provider or program. Command lines are recorded unchanged and therefore refused if they
hold one.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Iterable, Iterator
from urllib.parse import parse_qsl, unquote, urlsplit

from consilience.domain.errors import replace_surrogates

_KEY_VARIABLE = re.compile(r"(?:KEY|TOKEN|SECRET|PASSWORD|CREDENTIALS?)$")
_MIN_SENT_KEY_CHARS = 20
"""Min length of a key that is not a placeholder (`none`, `lm-studio`), which a reply may contain."""

_REFERENCE = r"(?:\$\w+|\$\{\w+(?::\?[^}]{0,200})?\}|\$\(|`)"
_NOT_A_REFERENCE = (
    rf"(?!\\?['\"]?\\?(?:\$\(|`|{_REFERENCE}(?:[\s'\",;&|)}}\]\\]|\Z)))(?!(?:os|process|Deno|Bun)\.|getenv\(|ENV\[)"
)
"""What a shell inserts from its environment (`$TOKEN`) or a command, or a program reads from it, is not a secret."""
_NOT_A_NUMBER = r"(?!\d+(?:[\s,;&]|\Z))"
_VALUE = rf"{_NOT_A_REFERENCE}(?:\\?\"[^\"]*\"|'[^']*'|[^\s'\",;&}})\]]+)"
_IS = r"\\?['\"]?\s*[:=]\s*"
_PASSWORD = r"(?:password|passwd|passphrase)"
_NAME = (
    r"(?:api[-_]?key|(?:access|secret|private|account|subscription)[-_]?key|x-[\w-]{0,30}key|x-auth"
    rf"|token|secret|{_PASSWORD})"
)
_KEY_SHAPES = re.compile(
    r"\b(?:sk-(?:proj|ant|or|svcacct)|gsk|nvapi|gh[oprsu]|github_pat|glpat|xox[abeoprs])[-_][\w\-*.…]{12,}"
    r"|\b(?:sk|pk|rk|xai|pplx|hf|fw|csk|r8|key)[-_]"  # so do names of programs begin, but those are made of words
    r"(?=[\w-]{0,40}?(?:[*…]|\.\.\.|[A-Za-z\d]{20}|(?=[A-Za-z]{0,11}\d)(?=\d{0,11}[A-Za-z])[A-Za-z\d]{12}))[\w\-*.…]{12,}"
    r"|\bAIza[\w\-]{20,}|\bya29\.[\w\-]+|\b(?:AKIA|ASIA)[A-Z0-9]{12,}"
    r"|-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,30}-----|\Z)"
    rf"|(?i:\bbearer\s+|\bkey provided:?\s*){_NOT_A_REFERENCE}[^\s'\",]+"
    r"|(?<=://)[^\s/@:]*:[^\s/@]+(?=@)|(?<=://)[\w.~%-]{20,}(?=@)",
    re.DOTALL,
)
"""Secrets recognized by their form."""
_DOTTED = re.compile(r"(?<![\w-])[\w-]{9,}+(?:\.[\w-]++)+")
_TOKEN = re.compile(r"\beyJ[\w-]{6,}")
"""The first part of a JSON Web Token, which is dotted: without a dot many may begin in one word."""
_LABELLED = re.compile(
    rf"(?P<label>(?i:\b(?:proxy-)?authorization{_IS}['\"]?(?:[a-z]+\s+)?+))(?:{_VALUE})"
    rf"|(?P<cookie>(?i:\b(?:set-)?cookie{_IS}))(?:{_NOT_A_REFERENCE}[^\n'\"]+|{_VALUE})"
    rf"|(?P<password>(?i:{_PASSWORD}{_IS}))(?:{_VALUE})"
    rf"|(?P<name>(?i:{_NAME}{_IS}|[-_](?:key|pat)=)){_NOT_A_NUMBER}(?:{_VALUE})"
    rf"|(?P<query>[?&](?i:key|sig|signature|auth|pass|pwd)=)(?:{_VALUE})"
    rf"|(?P<option>(?<!\S)--?(?i:[\w-]{{0,40}}{_NAME}|(?:[\w-]{{0,40}}-)?(?:pass|pwd|pat|cookie))\s+)(?!-){_NOT_A_NUMBER}(?:{_VALUE})",
)
"""Secrets recognized by the label before them, which is kept."""
_LOGIN = re.compile(
    r"(?P<user>(?<!\S)(?:-[A-Za-z]{0,5}[uU]|--(?:proxy-)?user|--(?:basic-)?auth)[\s=]?['\"]?(?P<who>[^\s:'\"]{1,80}):)"
    rf"(?!/|(?P=who)(?:\s|\Z)){_NOT_A_NUMBER}(?:{_VALUE})"
    r"|(?P<login>(?<!\S)(?:-[uU]|--user(?:name)?|--login|sshpass)\b[^\n]{0,80}?\s-p\s+)(?=\S*\d)(?=\S*[A-Za-z])[^\s/.~$-]\S{7,}"
)
"""Passwords after ambiguous options: USER:PASSWORD, but neither an address nor USER:GROUP of a container; `-p` after a user."""
_BASIC = re.compile(r"(?i:(?P<label>\bbasic\s+))(?P<value>[A-Za-z0-9+/_-]{6,}={0,2})")


def scrub(text: str, keys: Iterable[str]) -> str:
    """Return `text` without the `keys`, without secrets from the environment, and without what looks like a secret."""
    text = replace_surrogates(text)
    secrets = {key for key in keys if len(key) >= 4}
    for name, value in os.environ.items():
        if len(value) >= 8 and _KEY_VARIABLE.search(name.upper()):
            secrets.add(value)
        if "://" in value:
            secrets.update(_in_address(value))
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    text = _KEY_SHAPES.sub("***", _DOTTED.sub(_without_tokens, text))
    text = _BASIC.sub(lambda match: f"{match['label']}***" if _is_login(match["value"]) else match[0], text)
    for labelled in (_LABELLED, _LOGIN):
        text = labelled.sub(lambda match: f"{match[match.lastgroup or 0]}***", text)
    return text


def _without_tokens(dotted: re.Match[str]) -> str:
    """Return parts joined by dots without JSON Web Tokens: a part with a first part's form, the next, and the one behind it."""
    parts, kept = dotted[0].split("."), []
    place = 0
    while place < len(parts):
        token = _TOKEN.search(parts[place])
        is_token = token is not None and place + 1 < len(parts) and len(parts[place + 1]) >= 6
        kept.append(f"{parts[place][: token.start()]}***" if token is not None and is_token else parts[place])
        place += 3 if is_token else 1
    return ".".join(kept)


def holds_secret(command: str) -> bool:
    """Return whether a command line holds what looks like a secret. `$NAME` is none: a shell replaces it."""
    return scrub(command, []) != replace_surrogates(command)


def without_keys(text: str, keys: Iterable[str]) -> str:
    """Return a reply without the sent `keys`."""
    for key in sorted(keys, key=len, reverse=True):
        if len(key) >= _MIN_SENT_KEY_CHARS:
            text = text.replace(key, "***")
    return text


def _is_login(value: str) -> bool:
    """Return whether the value is USER:PASSWORD in base64."""
    try:
        decoded = base64.b64decode(value + "=" * (-len(value) % 4), altchars=b"-_" if set("-_") & set(value) else None)
    except (binascii.Error, ValueError):
        return False
    return b":" in decoded


def _in_address(url: str) -> Iterator[str]:
    """Yield the password in an address, also encoded as in a request, and keys in its query."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return
    if parts.password and len(parts.password) >= 4:
        plain = f"{unquote(parts.username or '')}:{unquote(parts.password)}"
        yield from (parts.password, unquote(parts.password), base64.b64encode(plain.encode()).decode())
    for name, value in parse_qsl(parts.query):
        if len(value) >= 8 and _KEY_VARIABLE.search(name.upper()):
            yield value
