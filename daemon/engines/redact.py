"""Secrets taken out of text before it becomes evidence, a message or a recording. Pure; safe to apply twice.

Bounded repeats and possessive ones keep every pattern near linear: the text comes from other people's processes.
Called by whoever shows what a host or an engine printed. Engines print their keys: SGLang's `server_args=` line and
`/server_info` hold `api_key`, argv holds whatever was given there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

HIDDEN = "[redacted]"
_READ_CHARS = 8192  # of a command line: a secret's end must be seen for it to be known as one
_NAME = (
    r"(?:[A-Za-z0-9_-]{0,64}[_-])?(?:api[_-]?keys?|(?:hf|hub|auth|access|bearer|refresh|id|session)[_-]?token|token"
    r"|pass(?:word|wd|phrase)|secret(?:[_-](?:access[_-])?key)?|credentials?|private[_-]key)"
)
_QUOTED = r"\"(?:[^\"\\]|\\.){0,4096}+\"|'(?:[^'\\]|\\.){0,4096}+'"
_BARE = r"[^\s\"',;&)}\]\x00]++"
_HIDES = r"(?!\[redacted\])"
_EMPTY = r"(?!(?:None|null|True|False|true|false)(?![A-Za-z0-9])|expected )"  # argparse: "--api-key: expected one …"

_RULES: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
        HIDDEN,
    ),
    (re.compile(r"(?i)\b(authorization|proxy-authorization)(['\"]?\s*[:=]\s*['\"]?)[^\r\n'\"]+"), rf"\1\2{HIDDEN}"),
    (re.compile(rf"(?i)\b(bearer|basic)(\s+){_HIDES}[A-Za-z0-9._~+/=-]{{8,}}+"), rf"\1\2{HIDDEN}"),
    (
        re.compile(r"\b(?:hf_[A-Za-z0-9]{8,}|sk-[A-Za-z0-9_-]{8,}|gh[pousr]_[A-Za-z0-9]{16,}|xox[abpr]-[\w-]{8,})"),
        HIDDEN,
    ),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"), HIDDEN),
    (re.compile(r"\beyJ[A-Za-z0-9_-]{8,4096}+\.[A-Za-z0-9_-]{4,8192}+\.[A-Za-z0-9_-]*+"), HIDDEN),
    (re.compile(r"\b([a-z][a-z0-9+.-]{0,20}://)[^/\s@:]{0,256}+:[^/\s@]{1,1024}+@"), rf"\1{HIDDEN}@"),
    # a flag and all its values, up to the next flag: vLLM takes several keys
    (
        re.compile(
            rf"(?i)(?<![\w-])(--{_NAME})(=|[ \x00]+)(?!-){_HIDES}(?:{_QUOTED}|{_BARE})"
            rf"(?:[ \x00]+(?!-)(?:{_QUOTED}|[^\s\x00]+))*"
        ),
        rf"\1\2{HIDDEN}",
    ),
    # the same as separate words of a printed list: '--api-key', 'x'
    (re.compile(rf"(?i)(['\"]--{_NAME}['\"]\s*,\s*)(?:{_QUOTED})"), rf"\1'{HIDDEN}'"),
    # name=value and "name": "value", in environments, JSON, YAML and Python's own print
    (
        re.compile(
            rf"(?i)(?<![A-Za-z0-9_-])({_NAME})(['\"]?\s*[:=]\s*){_EMPTY}{_HIDES}(?:\[[^\]\n]*\]|{_QUOTED}|{_BARE})"
        ),
        rf"\1\2{HIDDEN}",
    ),
)
_SECRET_NAME = re.compile(
    r"(?i)(?:^|[_-])(?:(?:api[_-]?keys?|(?:hf|hub|auth|access|bearer)[_-]token|token|pass(?:word|wd|phrase)|private[_-]key)$"
    r"|secret(?:$|[_-]))"
)


def redact(text: str) -> str:
    """The text with keys, tokens and passwords replaced by `[redacted]`; everything else as it was."""
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    return text


def redact_argv(argv: Sequence[str], room: int) -> str:
    """A command line as one line of at most `room` characters, bounded before it is looked at."""
    line = _shown(" ".join(" ".join(_bare_flags(argv)).split()))
    return line if len(line) <= room else line[: room - 2] + " …"


@lru_cache(maxsize=4096)  # 0.3 ms for an engine's command line, and the same ones are described in every pass
def _shown(line: str) -> str:
    return redact(line)


def _bare_flags(argv: Sequence[str]) -> Iterator[str]:
    """The first words; what follows a secret's flag is hidden though it begins like a flag, and may hold spaces."""
    left, secret = _READ_CHARS, False
    for word in argv:
        if left <= 0:
            return
        shown = HIDDEN if secret and word.startswith("-") else word[:left]
        yield shown
        left -= len(shown) + 1
        secret = word.startswith("-") and is_secret_name(word[:256].lstrip("-"))


def is_secret_name(name: str) -> bool:
    """Whether a flag (without dashes before it) or variable of this name usually holds a secret."""
    return _SECRET_NAME.search(name) is not None
