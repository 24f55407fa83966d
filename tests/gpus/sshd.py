"""An SSH server on loopback that runs commands with /bin/sh, where there is none: `sshd.py PORT KEY CLIENT_KEY`."""

from __future__ import annotations

import asyncio
import sys

import asyncssh


class _Anybody(asyncssh.SSHServer):
    def begin_auth(self, username: str) -> bool:
        return True


async def _run(process: asyncssh.SSHServerProcess[bytes]) -> None:
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(
        "/bin/sh", "-c", process.command or "", stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
    )
    await process.redirect(stdin=child.stdin, stdout=child.stdout, stderr=child.stderr)
    process.exit(await child.wait())


async def _main(port: int, key: str, client: str) -> None:
    await asyncssh.listen(
        "127.0.0.1", port, server_factory=_Anybody, server_host_keys=[key], authorized_client_keys=client,
        process_factory=_run, encoding=None,
    )  # fmt: skip
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1]), sys.argv[2], sys.argv[3]))
