"""Orphaned torch workers on two real cards, found and cleared by the real daemon, helper and road.

`python3 -m tests.gpus.strays OUT` as root on a machine with two cards, torch, and what Stoker needs; writes figures,
events and raw looks to the folder OUT. It changes that machine (`/var/lib/stoker`, stand-ins in `/usr/local/bin` and
`/usr/bin`): only for one that is thrown away. Left out where no systemd runs: units (a stand-in says that all are
down), logind, journal; sshd (an asyncssh server on loopback).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncssh
import httpx

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
HOLD_MIB = 40 * 1024
FOREIGN_MIB = 10 * 1024
ADDRESS = "http://127.0.0.1:18080"
SMI = "nvidia-smi"


@dataclass
class Cards:
    """Memory in use of each card, asked again and again; `series` are (monotonic s, MiB of card 0, of card 1)."""

    series: list[tuple[float, int, int]] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    def watch(self) -> None:
        """Until `ended`."""
        while not self.ended.is_set():
            asked = [SMI, "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
            first, second = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()
            self.series.append((time.monotonic(), int(first), int(second)))

    def freed_s(self, gone_s: float, card: int, below_mib: int) -> float:
        """Seconds from that moment until the card showed less than that."""
        return next(row[0] - gone_s for row in self.series if row[0] >= gone_s and row[1 + card] < below_mib)


@dataclass
class Work:
    """What was started, by name; all of it ends with the run."""

    folder: Path
    pids: dict[str, int] = field(default_factory=dict)
    children: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def torch(self, words: list[str], names: list[str], env: dict[str, str], **more: Any) -> None:
        """A program of `workers.py`; waits until each name has written its pid."""
        python = sys.executable
        shape = [more.pop("title", python), str(HERE / "workers.py"), *words]
        self.children.append(subprocess.Popen(shape, executable=python, env=env, start_new_session=True, **more))
        for name in names:
            file = self.folder / f"{name}.pid"
            until(lambda file=file: file.exists() and file.read_text().isdigit(), f"{name} holds its memory", 180)
            self.pids[name] = int(file.read_text())

    def plain(self, name: str, words: list[str], env: dict[str, str]) -> None:
        """Any other process."""
        self.children.append(subprocess.Popen(words, env=env, start_new_session=True))
        self.pids[name] = self.children[-1].pid

    def end(self) -> None:
        """KILL for each that is left."""
        for pid in self.pids.values():
            if alive(pid):
                os.kill(pid, signal.SIGKILL)
        for child in self.children:
            child.kill()


def alive(pid: int) -> bool:
    """Whether it exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def until(met: Any, what: str, within_s: float) -> float:
    """Waits for it; the moment. Raises AssertionError after that time."""
    end = time.monotonic() + within_s
    while not met():
        assert time.monotonic() < end, f"{what}: not within {within_s:g} s"
        time.sleep(0.005)
    return time.monotonic()


def stand_ins() -> None:
    """No systemd: units that are all down; and nobody says that this is a container."""
    if os.path.exists("/usr/bin/systemctl"):
        raise SystemExit("this machine has a systemctl: not one to be thrown away")
    for folder in ("/run/systemd/system", "/run/systemd/stand-in", "/etc/systemd/system"):
        os.makedirs(folder, exist_ok=True)
    for name in ("systemctl", "busctl"):
        shutil.copy(HERE / "systemctl", f"/usr/bin/{name}")
        os.chmod(f"/usr/bin/{name}", 0o755)
    Path("/usr/bin/systemd-detect-virt").write_text("#!/bin/sh\necho none\nexit 1\n")
    os.chmod("/usr/bin/systemd-detect-virt", 0o755)
    smi = shutil.which(SMI)
    if smi and not os.path.exists("/usr/local/bin/nvidia-smi") and not os.path.exists("/usr/bin/nvidia-smi"):
        os.symlink(smi, "/usr/local/bin/nvidia-smi")
    if not os.path.exists("/etc/machine-id") or not Path("/etc/machine-id").read_text().strip():
        Path("/etc/machine-id").write_text("0123456789abcdef0123456789abcdef\n")


def serve(folder: Path, work: Work) -> tuple[str, dict[str, str]]:
    """SSH server and daemon; the host key line, and the environment that the command line finds it by."""
    for name in ("host", "client"):
        key = asyncssh.generate_private_key("ssh-ed25519")
        key.write_private_key(str(folder / name))
        key.write_public_key(str(folder / f"{name}.pub"))
    env = dict(os.environ)
    env |= {
        "PYTHONPATH": f"{ROOT}:{env.get('PYTHONPATH', '')}", "STOKER_DATA": str(folder / "data"),
        "STOKER_PORT": "18080", "STOKER_SSH_IDENTITY": str(folder / "client"), "STOKER_LOG_FORMAT": "json",
    }  # fmt: skip
    sshd = [sys.executable, str(HERE / "sshd.py"), "18022", str(folder / "host"), str(folder / "client.pub")]
    work.children.append(subprocess.Popen(sshd, env=env))
    with (folder / "daemon.log").open("wb") as log:
        words = [sys.executable, "-c", "from api.cli import main; main()", "serve"]
        work.children.append(subprocess.Popen(words, env=env, cwd=ROOT, stdout=log, stderr=log))
    until(_answers, "the daemon answers", 30)
    line = " ".join((folder / "host.pub").read_text().split()[:2])
    return line, env


def _answers() -> bool:
    try:
        return httpx.get(f"{ADDRESS}/readyz", timeout=2).status_code == 200
    except httpx.HTTPError:
        return False


@dataclass
class Api:
    """The daemon's API."""

    token: str

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """JSON of a call that must succeed."""
        headers = {"Authorization": f"Bearer {self.token}"}
        answer = httpx.request(method, f"{ADDRESS}{path}", json=body, headers=headers, timeout=30)
        assert answer.status_code < 300, answer.text
        return answer.json()

    def put(self, kind: str, plural: str, name: str, spec: dict[str, Any]) -> Any:
        """Declares one object."""
        body = {"apiVersion": "stoker/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}
        return self.call("PUT", f"/api/v1/{plural}/{name}", body)

    def ready(self) -> dict[str, Any]:
        """The spec's Ready condition."""
        status = self.call("GET", "/api/v1/servingspecs/m").get("status") or {}
        return next((c for c in status.get("conditions", []) if c["type"] == "Ready"), {"reason": "", "message": ""})

    def strays(self) -> dict[int, dict[str, Any]]:
        """What the host's status says of each process that is not managed, by pid."""
        status = self.call("GET", "/api/v1/hosts/a").get("status") or {}
        return {row["pid"]: row for row in status.get("strays", [])}

    def events(self) -> list[dict[str, Any]]:
        """All events, as told."""
        found: list[dict[str, Any]] = self.call("GET", "/api/v1/events?limit=500")["items"]
        return found


def host_spec(line: str, mode: str) -> dict[str, Any]:
    """The machine itself, over SSH."""
    ssh = {"address": "127.0.0.1", "port": 18022, "user": "root", "hostKey": line}
    return {"ssh": ssh, "mode": mode, "period": "2s", "gpus": {"count": 2}}


SPEC = {
    "engine": {"name": "sglang", "python": "/opt/venv/bin/python", "version": "0.5.23"},
    "model": {"path": "/models/m", "servedName": "m"},
    "parallelism": {"tensor": 2},
    "placement": {"host": "a", "gpus": [0, 1]},
    "port": 30001,
    "strays": {"grace": "3s"},
}


def plant(folder: Path, work: Work, marks: dict[str, str]) -> None:
    """Orphans of ours with their launcher killed, one stopped; and others beside them that only look alike."""
    marked = {**os.environ, **marks}
    work.torch(["launcher", str(folder), str(HOLD_MIB)], ["launcher", "worker0", "worker1"], marked)
    plain, alike = dict(os.environ), "sglang::scheduler_TP0"
    site = [p for p in sys.path if p.endswith("site-packages")]
    titled = {**plain, "PYTHONPATH": ":".join([plain.get("PYTHONPATH", ""), *site])}
    work.torch(["hold", str(folder), "foreign", "0", str(FOREIGN_MIB)], ["foreign"], titled, title=alike)
    other = {**titled, **marks, "HOME": "/tmp"}
    os.chmod(folder, 0o777)
    work.torch(
        ["hold", str(folder), "other-user", "1", str(FOREIGN_MIB)], ["other-user"], other, title=alike, user=1000
    )
    work.plain("debug-shell", ["/bin/sh", "-c", "while :; do sleep 60; done"], marked)
    work.plain("unrelated", [sys.executable, "-c", "import time; time.sleep(3600)"], plain)
    os.kill(work.pids["launcher"], signal.SIGKILL)
    os.kill(work.pids["worker0"], signal.SIGSTOP)
    until(lambda: not alive(work.pids["launcher"]), "the launcher is gone", 10)


def run(out: Path, folder: Path, work: Work) -> dict[str, Any]:
    """The whole story; figures."""
    stand_ins()
    line, env = serve(folder, work)
    api = Api((folder / "data" / "token").read_text().strip())
    api.put("Host", "hosts", "a", host_spec(line, "observe"))
    uid = api.put("ServingSpec", "servingspecs", "m", SPEC)["metadata"]["uid"]
    store = next(json.loads(x)["store"] for x in (folder / "daemon.log").read_text().splitlines() if '"store"' in x)
    plant(folder, work, {"STOKER_STORE": store, "STOKER_SPEC": uid})
    ours = {work.pids["worker0"], work.pids["worker1"]}
    others = {name: pid for name, pid in work.pids.items() if pid not in ours and name != "launcher"}
    until(lambda: {p for p, row in api.strays().items() if row["owner"] == "orphan-proven"} == ours, "attribution", 60)
    attribution = {pid: (row["owner"], row["proof"]) for pid, row in api.strays().items()}
    record(out / "orphans.yaml", env)
    cards = Cards()
    watching = threading.Thread(target=cards.watch)
    watching.start()
    told = cleared(api, work, cards, line)
    assert all(alive(pid) for pid in others.values()), "a process of somebody else was ended"
    until(lambda: api.ready()["reason"] == "ForeignHolder", "blocked by the foreign ones", 60)
    told["blocked"] = api.ready()["message"]
    record(out / "foreign-left.yaml", env)
    for name in ("foreign", "other-user"):
        os.kill(work.pids[name], signal.SIGKILL)
    until(lambda: "start" in (Path("/run/systemd/stand-in/calls").read_text()), "the start", 60)
    told["started once the others were gone"] = True
    cards.ended.set()
    watching.join()
    told["attribution"] = {work_name(work, pid): row for pid, row in attribution.items()}
    told["others alive"] = {name: alive(pid) for name, pid in others.items()}
    told["looks"] = looks(keep(out, api, cards, folder))
    return told


def record(file: Path, env: dict[str, str]) -> None:
    """One look, kept whole."""
    words = [sys.executable, "-c", "from api.cli import main; main()", "record", "a", "-o", str(file)]
    subprocess.run(words, env=env, cwd=ROOT, check=True)


def work_name(work: Work, pid: int) -> str:
    """The name of a planted process, else its pid."""
    return next((name for name, known in work.pids.items() if known == pid), str(pid))


def cleared(api: Api, work: Work, cards: Cards, line: str) -> dict[str, Any]:
    """Lets Stoker act; when each worker went and when its card was free again (other holders' memory apart)."""
    began = time.monotonic()
    api.put("Host", "hosts", "a", host_spec(line, "enforce"))
    told: dict[str, Any] = {}
    for name, card in (("worker0", 0), ("worker1", 1)):
        gone = until(lambda name=name: not alive(work.pids[name]), f"{name} gone", 60)
        told[f"{name} gone after s"] = round(gone - began, 2)
        until(lambda card=card: cards.series[-1][1 + card] < HOLD_MIB, f"card {card} free", 30)
        told[f"{name} memory free after its end s"] = round(cards.freed_s(gone, card, HOLD_MIB), 3)
    return told


def looks(metrics: str) -> dict[str, float]:
    """How many there were, and the mean of their seconds."""
    found = dict(line.split(" ") for line in metrics.splitlines() if line.startswith("stoker_look_seconds_"))
    total, count = float(found["stoker_look_seconds_sum"]), float(found["stoker_look_seconds_count"])
    return {"count": count, "mean s": round(total / count, 3)}


def keep(out: Path, api: Api, cards: Cards, folder: Path) -> str:
    """Events, memory over time, the daemon's log and metrics; gives the metrics."""
    (out / "events.json").write_text(json.dumps(api.events(), indent=1))
    (out / "memory.json").write_text(json.dumps(cards.series))
    (out / "host.json").write_text(json.dumps(api.call("GET", "/api/v1/hosts/a"), indent=1))
    headers = {"Authorization": f"Bearer {api.token}"}
    text = httpx.get(f"{ADDRESS}/metrics", headers=headers, timeout=30).text
    (out / "metrics.txt").write_text(text)
    shutil.copy(folder / "daemon.log", out / "daemon.log")
    return text


def main() -> None:
    """See the module."""
    out, folder = Path(sys.argv[1]), Path("/tmp/strays-on-cards")
    folder.mkdir()
    work = Work(folder)
    try:
        told = run(out, folder, work)
        (out / "result.json").write_text(json.dumps(told, indent=1))
        print(json.dumps(told, indent=1))
    finally:
        if (folder / "daemon.log").exists():
            shutil.copy(folder / "daemon.log", out / "daemon.log")
        work.end()


if __name__ == "__main__":
    main()
