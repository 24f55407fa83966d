"""One HTTP request by the host's own Python, and the processes at the far end of its connection.

`stoker-host probe` runs this text with `python -I -S -c`; nothing imports it. It reads the request on standard input,
writes `STATUS`, a newline and the body on standard output, and the far end's pids on descriptor 3. Exit statuses are
curl's: 7 refused, 28 out of time, 56 cut. Python 3.6 must run it.
"""

import os
import select
import signal
import socket
import sys
from typing import Any, Dict, List, Tuple  # noqa: UP035 - Python 3.6

try:
    import http.client
except ImportError:  # Debian's python3-minimal
    sys.exit(97)

MAX_BODY = 65536


def read_request(stream: Any) -> Tuple[Dict[str, str], List[Tuple[str, str]], bytes]:  # noqa: UP006
    """The keys, the headers and the body."""
    keys: Dict[str, str] = {}  # noqa: UP006
    headers: List[Tuple[str, str]] = []  # noqa: UP006
    for raw in iter(stream.readline, b".\n"):
        if not raw:
            sys.exit(64)
        key, _, value = raw.rstrip(b"\n").decode("utf-8").partition(" ")
        if key == "header":
            name, _, text = value.partition(":")
            headers.append((name.strip(), text.strip()))
        else:
            keys[key] = value
    return keys, headers, stream.read()


def far_inode(sock: Any, port: int) -> str:
    """The inode of the accepted socket at the other end, as this kernel shows it; "" when it is not here."""
    own = sock.getsockname()
    packed = socket.inet_pton(sock.family, own[0].partition("%")[0])
    words = [packed[i : i + 4][::-1].hex().upper() for i in range(0, len(packed), 4)]
    remote, local = "".join(words) + f":{own[1]:04X}", f":{port:04X}"
    for name in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(name) as table:
                for line in table:
                    cells = line.split()
                    if cells[1].endswith(local) and cells[2].endswith(remote) and cells[9] != "0":
                        return cells[9]
        except OSError:
            continue
    return ""


def holders(inode: str, pids: List[str]) -> List[str]:  # noqa: UP006
    """Those of the pids that have the socket open."""
    found = []
    for pid in pids:
        try:
            for name in os.listdir(f"/proc/{pid}/fd"):
                if os.readlink(f"/proc/{pid}/fd/{name}") == f"socket:[{inode}]":
                    found.append(pid)
                    break
        except OSError:
            continue
    return found


def far_end(sock: Any, port: int, near: List[str]) -> List[str]:  # noqa: UP006
    """Pids that hold the accepted socket: the likely ones first, then everybody."""
    inode = far_inode(sock, port)
    if not inode:
        return []
    others = [pid for pid in os.listdir("/proc") if pid.isdigit()]
    return holders(inode, near) or holders(inode, others)


def await_accept(sock: Any, port: int, near: List[str]) -> List[str]:  # noqa: UP006
    """The far end while nothing was sent yet: a server that answers and closes at once is seen here. At most 0.3 s."""
    for pause in (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.1):
        select.select([sock], [], [], pause)
        pids = far_end(sock, port, near)
        if pids:
            return pids
    return []


def await_answer(sock: Any, port: int, near: List[str]) -> List[str]:  # noqa: UP006
    """The far end of a server too busy to accept before: looked for until the answer begins."""
    pause = 0.05
    while True:
        begun = bool(select.select([sock], [], [], pause)[0])
        pids = far_end(sock, port, near)
        if pids or begun:
            return pids
        pause = min(pause * 2, 1.0)


def out_of_time(_number: int, _frame: Any) -> None:
    """The whole request has one limit; ending closes the connection, so nothing is left hanging on the engine."""
    os._exit(28)


def main() -> None:
    """Asks once."""
    keys, headers, body = read_request(sys.stdin.buffer)
    signal.signal(signal.SIGALRM, out_of_time)
    signal.alarm(int(keys["timeout"]))
    port = int(keys["port"])
    link = http.client.HTTPConnection(keys["address"], port)
    try:
        link.connect()
    except OSError:
        sys.exit(7)
    try:
        near = sorted(set(keys["pids"].split()))
        pids = await_accept(link.sock, port, near)
        link.putrequest(keys["method"], keys["path"], skip_accept_encoding=True)
        for name, text in headers:
            link.putheader(name, text)
        if body:
            link.putheader("Content-Length", str(len(body)))
        link.endheaders(body or None)
        pids = pids or await_answer(link.sock, port, near)
        os.write(3, (" ".join(pids) + "\n").encode())
        answer = link.getresponse()
        content = answer.read(MAX_BODY)
    except (OSError, http.client.HTTPException):
        sys.exit(56)
    sys.stdout.buffer.write(b"%d\n" % answer.status + content)
    sys.stdout.buffer.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
