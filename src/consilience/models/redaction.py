"""Finds secrets in texts that are recorded or printed: known ones, and what looks like one.

Secrets are removed from the words of a provider or program (`scrub`). Command lines are recorded unchanged and therefore refused if
they contain one (`command_holds_secret`).
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePath
from urllib.parse import parse_qsl, unquote, urlsplit

from consilience.domain.errors import replace_surrogates

_KEY_VARIABLE = re.compile(r"(?:KEY|TOKEN|SECRET|PASSWORD|CREDENTIALS?)$")
_MIN_SENT_KEY_CHARS = 20
"""Min length of a key that is not a placeholder (`none`, `lm-studio`), which a reply may contain."""

_REFERENCE = r"(?:\$\w+|\$\{\w+(?::\?[^}]*)?\}|\$\(|`)"
_NOT_A_REFERENCE = rf"(?!\\?['\"]?\\?(?:\$\(|`|{_REFERENCE}(?:[\s'\",;&|)}}\]\\]|\Z)))"
"""What a shell inserts from its environment (`$TOKEN`) or a command is not a secret."""
_VALUE = rf"{_NOT_A_REFERENCE}(?:\\?\"[^\"]*\"|'[^']*'|[^\s'\",;&}})\]]+)"
_IS = r"\\?['\"]?\s*[:=]\s*"
_NAME = (
    r"(?:api[-_]?key|(?:access|secret|private|account|subscription)[-_]?key|x-[\w-]{0,30}key|x-auth"
    r"|token|secret|password|passwd|passphrase)"
)
_KEY_SHAPES = re.compile(
    r"\b(?:sk-(?:proj|ant|or|svcacct)|gsk|nvapi|gh[oprsu]|github_pat|glpat|xox[abeoprs])[-_][\w\-*.…]{12,}"
    r"|\b(?:sk|pk|rk|xai|pplx|hf|fw|csk|r8|key)[-_]"  # so do names of programs begin, but those are made of words
    r"(?=[\w-]{0,40}?(?:[*…]|\.\.\.|[A-Za-z\d]{20}|(?=[A-Za-z]{0,11}\d)(?=\d{0,11}[A-Za-z])[A-Za-z\d]{12}))[\w\-*.…]{12,}"
    r"|\bAIza[\w\-]{20,}|\bya29\.[\w\-]+|\b(?:AKIA|ASIA)[A-Z0-9]{12,}"
    r"|\beyJ[\w-]{6,}\.[\w-]{6,}(?:\.[\w-]*)?"
    r"|-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,30}-----|\Z)"
    rf"|(?i:\bbearer\s+|\bkey provided:?\s*){_NOT_A_REFERENCE}[^\s'\",]+"
    r"|(?<=://)[^\s/@:]*:[^\s/@]+(?=@)|(?<=://)[\w.~%-]{20,}(?=@)",
    re.DOTALL,
)
"""Secrets recognized by their form."""
_LABELLED = re.compile(
    rf"(?P<label>(?i:\b(?:proxy-)?authorization{_IS}['\"]?(?:[a-z]+\s+)?+))(?:{_VALUE})"
    rf"|(?P<cookie>(?i:\b(?:set-)?cookie{_IS}))(?:{_NOT_A_REFERENCE}[^\n'\"]+|{_VALUE})"
    rf"|(?P<name>(?i:{_NAME}{_IS}|[-_]key=))(?:{_VALUE})"
    rf"|(?P<query>[?&](?i:key|sig|signature|auth|pass|pwd)=)(?:{_VALUE})"
    rf"|(?P<option>(?<!\S)--?(?i:[\w-]{{0,40}}{_NAME}|pass|pwd)\s+)(?!-)(?:{_VALUE})",
)
"""Secrets recognized by the label before them, which is kept."""
_LOGIN = re.compile(
    rf"(?P<user>(?<!\S)(?:-[uU]|--(?:proxy-)?user)[\s=]?['\"]?[^\s:'\"]{{1,80}}:)(?!\d+(?:\s|\Z))(?:{_VALUE})"
    r"|(?P<password>(?<!\S)(?:-[uU]|--user(?:name)?|--login|sshpass)\b[^\n]{0,80}?\s-p\s+)(?=\S*\d)(?=\S*[A-Za-z])[^\s/.~$-]\S{7,}"
)
"""Passwords after ambiguous options, which `_gives_secret` distinguishes in a command."""
_BASIC = re.compile(r"(?i:(?P<label>\bbasic\s+))(?P<value>[A-Za-z0-9+/_-]{6,}={0,2})")

_SECRET_NAME = re.compile(
    r"-{0,2}(?:[A-Za-z_][\w.-]*)?(?i:key|token|secret|password|passwd|passphrase|credentials?|(?<![A-Za-z])(?:pass|pwd|pw|pat|cookie|bearer))"
)
"""The name of an option, variable or field for secrets."""
_SECRET_HEADER = re.compile(r"(?i:(?P<name>[\w-]{0,40}key|x-[\w-]{0,20}auth[\w-]{0,20}):\s*)(?P<value>\S.*)")
_LOGIN_OPTIONS = ("-u", "-U", "--user", "--username", "--login")
_CODE = re.compile(rf"(?i:{_NAME}{_IS})(['\"])(?!\1)")
"""A secret in source code: a name with a string literal. Anything else is an expression that reads one."""
_OPERATORS = ";&|()`\n"
_FLAGS = r"-[#0-46afgGiIjJkLlnNOqRsSvZ]*"
"""Options of curl without a value, which may precede another in one word."""

_WRAPPERS = re.compile(
    r"sudo|doas|env|timeout|nohup|nice|ionice|time|exec|command|stdbuf|setsid|xargs|sshpass|docker|podman|nerdctl|kubectl|ssh"
)
"""Programs that start another one, given in their arguments."""
_SHELLS = re.compile(r"(?:ba|da|z|k|a)?sh|fish")
_INTERPRETERS = re.compile(r"python[\d.]*|pypy[\d.]*|node|nodejs|deno|bun|ruby|perl|php")
_CONTAINERS = re.compile(r"docker|podman|nerdctl")
"""To these `-u` gives USER:GROUP."""


def _any(value: str) -> bool:
    return bool(re.match(r"\S", value))


def _no_number(value: str) -> bool:
    return bool(re.match(r"\S+\Z", value)) and not re.fullmatch(r"[\d.:/,-]+", value)


def _login(value: str) -> bool:
    user, _, password = value.partition(":")
    return bool(user and password) and not password.startswith("/") and not (user + password).isdigit()


_RULES = [
    (re.compile(programs), re.compile(option), secret)
    for programs, option, secret in (
        (r".*", r"-[uaU]|--user|--proxy-user|--auth|--basic-auth", _login),
        (r"curl", rf"{_FLAGS}[uU]", _login),
        (r"curl", rf"{_FLAGS}b|--cookie", lambda value: "=" in value),
        (r"sshpass|mysql\w*|mariadb[\w-]*|mongo\w*", r"-p", _no_number),
        (r"redis-cli", r"-a", _any),
        (r"zip|unzip", r"-P", _any),
        (r"7z\w*|rar|unrar", r"-p", _any),
        (r"ldap\w+", r"-w", _any),
        (r"smbclient|rpcclient", r"-U|--user", lambda value: "%" in value.strip("%")),
    )
]
"""Programs, options, and a test whether their value is a secret. The value may be in the same word."""
_MAX_NESTING = 3


def scrub(text: str, keys: Iterable[str]) -> str:
    """Return `text` without the `keys`, without secrets from the environment, and without what looks like a secret."""
    text = _without_shapes(text, keys)
    for labelled in (_LABELLED, _LOGIN):
        text = labelled.sub(lambda match: f"{match[match.lastgroup or 0]}***", text)
    return text


def _without_shapes(text: str, keys: Iterable[str]) -> str:
    """Return `text` without known secrets and without those recognized by their form."""
    text = replace_surrogates(text)
    secrets = {key for key in keys if len(key) >= 4}
    for name, value in os.environ.items():
        if len(value) >= 8 and _KEY_VARIABLE.search(name.upper()):
            secrets.add(value)
        if "://" in value:
            secrets.update(_in_address(value))
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    text = _KEY_SHAPES.sub("***", text)
    return _BASIC.sub(lambda match: f"{match['label']}***" if _is_login(match["value"]) else match[0], text)


def without_keys(text: str, keys: Iterable[str]) -> str:
    """Return a reply without the sent `keys`."""
    for key in sorted(keys, key=len, reverse=True):
        if len(key) >= _MIN_SENT_KEY_CHARS:
            text = text.replace(key, "***")
    return text


def command_holds_secret(command: str) -> bool:
    """Return whether a command line, or one inside it (`sh -c '…'`), contains a secret. `$NAME` is not one: a shell replaces it.

    Secrets are what looks like one, values of options and variables with the name of a secret (`--pass x`, `API_KEY=x`),
    `-u USER:PASSWORD`, `-p` with a password next to a user name, and the rules of `_RULES` for single programs.
    """
    if _without_shapes(command, []) != command:
        return True
    try:
        words = shlex.split(command)
    except ValueError:  # an unclosed quotation
        words = command.split()
    return bool(words) and _words_hold_secret(words, 0)


def _script_holds_secret(script: str, nesting: int) -> bool:
    """Return the same for a shell script, which may contain several commands."""
    if nesting > _MAX_NESTING:
        return False
    lexer = shlex.shlex(script.replace("$'", "'"), posix=True, punctuation_chars=_OPERATORS)
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    try:
        words = list(lexer)
    except ValueError:
        words = script.split()
    commands: list[list[str]] = [[]]
    for word in words:
        if set(word) <= set(_OPERATORS):
            commands.append([])
        else:
            commands[-1].append(word)
    return any(_words_hold_secret(one, nesting) for one in commands if one)


def _words_hold_secret(words: Sequence[str], nesting: int) -> bool:
    """Return the same for the words of one command; `nesting` counts the shells around it."""
    start = next((place for place, word in enumerate(words) if not re.match(r"\w+=", word)), len(words))
    heads = words[start : start + 1]
    programs = [PurePath(word).name for word in (words[start:] if heads and _is_one(_WRAPPERS, heads) else heads)]
    before = ""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        is_argument = before.startswith("-")
        if is_argument and _is_one(_INTERPRETERS, programs):
            found = bool(_CODE.search(word))
        elif is_argument and before.endswith("c") and _is_one(_SHELLS, programs):
            found = _script_holds_secret(word, nesting + 1)
        else:
            found = _gives_secret(words, programs, word, following, shell=nesting > 0)
            found = found or (any(map(str.isspace, word)) and _script_holds_secret(word, nesting + 1))
        if found:
            return True
        before = word
    return False


def _is_one(which: re.Pattern[str], words: Iterable[str]) -> bool:
    return any(which.fullmatch(PurePath(word).name) for word in words)


def _gives_secret(words: Sequence[str], programs: Sequence[str], word: str, following: str, *, shell: bool) -> bool:
    """Return whether a word, with the next one as its value, passes a secret to one of `programs`."""
    if _LABELLED.search(word) and not _SECRET_NAME.fullmatch(word.partition("=")[0]):
        return True
    if (header := _SECRET_HEADER.fullmatch(word)) and not _is_reference(header["value"], shell):
        return True
    name, equals, value = word.partition("=")
    if not equals and word.startswith("-"):
        value = (
            following if not following.startswith("-") or re.match(r"--.*\0-[^-]\S{3}", f"{word}\0{following}") else ""
        )
    if _SECRET_NAME.fullmatch(name) and value and not _is_reference(value, shell):
        return _may_be_secret(name.lstrip("-").lower(), value)
    if name == "-p" and any(one.partition("=")[0] in _LOGIN_OPTIONS for one in words):
        return _no_number(value) and not _is_reference(value, shell)
    for which, option, is_secret in _RULES:
        if (given := option.match(word)) is None or not _is_one(which, programs):
            continue
        if is_secret is _login and _is_one(_CONTAINERS, programs):
            continue
        value = word[given.end() :].removeprefix("=") or ("" if following.startswith("-") else following)
        if is_secret(value) and not _is_reference(value.partition(":")[2] if is_secret is _login else value, shell):
            return True
    return False


def _is_reference(value: str, shell: bool) -> bool:
    """Return whether a shell replaces the value. Without a shell, only the form of a variable is accepted."""
    scheme, _, rest = value.partition(" ")
    if rest and scheme.isalpha():  # Bearer $TOKEN
        value = rest
    value = value.removeprefix("\\").strip("'\"")
    if value == "$" or value.startswith(("$(", "`")):
        return shell
    return bool(re.fullmatch(_REFERENCE, value)) and (shell or value.upper() == value)


def _may_be_secret(name: str, value: str) -> bool:
    """Return whether the value of an option or variable with the name of a secret may be one."""
    if name == "key":  # may also be a sort field or a name
        return _looks_random(value)
    return not value.isdigit() or (len(value) > 2 and bool(re.search(r"pass|pwd|pw$|secret", name)))


def _looks_random(value: str) -> bool:
    kinds = (str.isalpha, str.isdigit)
    return len(value) >= 8 and value[0] not in "./~" and all(any(map(kind, value)) for kind in kinds)


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


__all__ = ["command_holds_secret", "scrub", "without_keys"]
