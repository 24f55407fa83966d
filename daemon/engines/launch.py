"""What one instance is started as: argv, environment, user, folder, cards; and the hash that names it.

Called by the planner for each look; the argv is compared with what the host shows, so it is exact to the byte.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from posixpath import normpath
from typing import assert_never

from daemon.domain.spec import Role, ServingSpec
from daemon.engines import custom, router, sglang, vllm
from daemon.engines.router import Peer

__all__ = ["RESERVED_ENV", "Launch", "Peer", "argv_runs", "launch_hash", "render"]

RESERVED_ENV = ("CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "SPT_NOENV")


@dataclass(frozen=True, slots=True)
class Launch:
    """Only a difference in one of these restarts something that serves. `env` is sorted, without STOKER_ marks."""

    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    user: str | None
    working_directory: str | None
    gpu_uuids: tuple[str, ...]


def render(
    view: ServingSpec,
    role: Role,
    gpus: tuple[tuple[int, str], ...],
    spec: ServingSpec,
    peers: tuple[Peer, ...] = (),
) -> Launch:
    """The launch of one role on its bound cards (index, UUID). `view` is `spec.role_view(role)`; never raises."""
    return Launch(
        argv=_argv(view, role, spec, peers),
        env=_env(view, gpus),
        user=view.user,
        working_directory=None if view.working_directory is None else normpath(view.working_directory),
        gpu_uuids=tuple(uuid for _, uuid in gpus),
    )


def _argv(view: ServingSpec, role: Role, spec: ServingSpec, peers: tuple[Peer, ...]) -> tuple[str, ...]:
    if role == "router" and view.engine.name != "custom":
        return router.argv(view, peers)
    match view.engine.name:
        case "sglang":
            return sglang.argv(view, role, spec)
        case "vllm":
            return vllm.argv(view)
        case "custom":
            return custom.argv(view)
        case other:
            assert_never(other)


def _env(view: ServingSpec, gpus: tuple[tuple[int, str], ...]) -> tuple[tuple[str, str], ...]:
    """Without SPT_NOENV a process that sets its title wipes its environment from /proc, our marks included."""
    env = {name: value for name, value in view.env.items() if not name.startswith("STOKER_")}
    env |= {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # nvidia-smi's order of indexes
        "CUDA_VISIBLE_DEVICES": ",".join(str(index) for index, _ in gpus),
        "SPT_NOENV": "1",
    }
    return tuple(sorted(env.items()))


def launch_hash(launch: Launch) -> str:
    """A name for a launch, `v1:` and 32 hexadecimal digits. It only names: differences are found by comparing."""
    parts = {
        "argv": launch.argv,
        "env": launch.env,
        "user": launch.user or "root",
        "workingDirectory": launch.working_directory or "/",
        "gpus": launch.gpu_uuids,
    }
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return f"v1:{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def _by_interpreter(declared: tuple[str, ...], observed: tuple[str, ...]) -> bool:
    """The kernel starts a script as its interpreter, at most one argument of its first line, and the argv given."""
    more = len(observed) - len(declared)
    return more in (1, 2) and observed[0].startswith("/") and observed[more:] == declared


def argv_runs(launch: Launch, observed: tuple[str, ...]) -> bool:
    """Whether a process with the argv `observed` is this launch running.

    The router overwrites its own command line with a title, padded with NULs: then the title must do, and its
    identity rests on its unit and its mark.
    """
    if observed == launch.argv or _by_interpreter(launch.argv, observed):
        return True
    words = tuple(word for word in observed if word)
    return router.is_router(launch.argv) and words == (router.TITLE,)
