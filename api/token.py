"""The bearer token's file: made on first start, kept 0600. Who holds the token is root on the hosts.

`serve` calls `token_at` once; the command line reads a local daemon's token. Knows nothing of HTTP.
"""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from daemon.domain.errors import StokerError

TOKEN_FILE = "token"  # noqa: S105 - a file's name
_MIN_LENGTH = 20


def token_at(folder: Path) -> str:
    """The token in `folder`, made when there is none. Blocks. Raises: StokerError as `read_token`, or no access."""
    path = folder / TOKEN_FILE
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists():
            _create(path)
    except OSError as error:
        raise StokerError(
            f"{folder}: {error.strerror}: give the daemon's user (uid {os.geteuid()}) write access, or set STOKER_DATA"
        ) from error
    return read_token(path)


def read_token(path: Path) -> str:
    """The token in a file. Raises: StokerError when it cannot be read, others may read it, or it is no token."""
    try:
        with path.open(encoding="ascii") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            token = file.read(4096).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise StokerError(f"{path}: {getattr(error, 'strerror', None) or 'not a token'}") from error
    if mode & 0o077:
        raise StokerError(
            f"{path} may be read by others (mode {mode:04o}): run chmod 600 on it, or remove it for a new one"
        )
    if len(token) < _MIN_LENGTH or not token.isprintable() or " " in token:
        raise StokerError(f"{path} holds no token of at least {_MIN_LENGTH} characters: remove it for a new one")
    return token


def _create(path: Path) -> None:
    """Whole or not at all: a start that dies here leaves no empty token behind. Another's is never overwritten."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)
        except FileExistsError:
            return
    finally:
        draft.unlink()
