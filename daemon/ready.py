"""Readiness as law 4: one generation, judged by what the host said before, during and after it in one exec.

`judge` is pure; `Prober.generate` and `Prober.serves` are called as tasks of their own by `controller`, never within a
reconcile. The key of a server never appears here yet: a 401 is an answer, `ProbeUnauthorized`.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from typing import Any

from daemon.domain.errors import TransportError, VerbFailed, VerbRefused
from daemon.domain.observation import Unknown
from daemon.domain.spec import ServingSpec
from daemon.domain.status import Reason
from daemon.domain.text import duration_s
from daemon.engines import effective
from daemon.engines.launch import argv_runs
from daemon.planner.world import Desired, EffectiveFact
from daemon.probes.probe import ProbeAnswer, parse_probe
from daemon.probes.report import Answer
from daemon.verbs import Asks, ask

Verdict = tuple[bool, Reason, str]
EFFECTIVE_TIMEOUT_S = 10.0
LOOPBACK = "127.0.0.1"
NEAR = (LOOPBACK, "127.0.0.2", "127.0.0.3", "127.0.0.4")  # all of 127/8 is this machine
_TELLS = frozenset({None, Reason.GENERATION_TIMEOUT, Reason.GENERATION_FAILED})  # was asked, and was silent or no HTTP
_NOT_SO = frozenset({400, 404, 405, 413, 415, 422, 429})  # of a server that lives: not this question, or not now
NO_UNIT = "stoker-none.service"  # a probe of a port that is no unit's; systemd shows it as not found


def generation_request(view: ServingSpec, role: str, nonce: str) -> tuple[str, str, dict[str, Any] | None]:
    """(method, path, JSON body) of one generation; a nonce in each prompt defeats caches.

    prefill and decode cannot generate alone: their health path shows that they loaded.
    """
    kind, name = view.readiness.kind, view.served_name
    if kind == "http":
        return "GET", view.readiness.path or "/health", None
    if role in ("prefill", "decode"):
        return "GET", "/health", None
    prompt = f"Count upward from one. [{nonce}]"
    limit = {"max_tokens": view.readiness.max_tokens, "temperature": 0}
    match kind:
        case "completions":
            return "POST", "/v1/completions", {"model": name, "prompt": prompt, **limit}
        case "chat":
            return "POST", "/v1/chat/completions", {"model": name, "messages": [_user(prompt)], **limit}
        case "embeddings":
            return "POST", "/v1/embeddings", {"model": name, "input": prompt}
        case "score":
            return "POST", "/v1/score", {"model": name, "text_1": prompt, "text_2": "one two three"}


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def judge(answer: ProbeAnswer, desired: Desired, invocation: str) -> Verdict:
    """Whether the declared process of this invocation generated. Binding first: who answered decides what it means."""
    if (unbound := _unbound(answer, invocation)) is not None:
        return unbound
    # Somebody else holds the port: that is the story, whatever the request came to.
    if others := answer.seen_strangers:
        return False, Reason.STALE_PROCESS_SERVING, f"the port is held by pid {others[0]}, not of the unit"
    if answer.failure is not None:
        return False, answer.failure, answer.detail
    if isinstance(strangers := answer.strangers, Unknown):
        return False, strangers.reason, strangers.detail
    if isinstance(answer.argv, Unknown):
        return False, answer.argv.reason, "the main process's arguments could not be read"
    if not argv_runs(desired.launch, answer.argv):
        return False, Reason.ARGV_MISMATCH, "the process that answered runs other arguments than declared"
    if answer.mark != desired.launch_hash:
        return False, Reason.ARGV_MISMATCH, f"the process carries launch {answer.mark or '(none)'}"
    return _content(answer.http_status, answer.body, desired)


def _unbound(answer: ProbeAnswer, invocation: str) -> Verdict | None:
    """Why the answer belongs to no one invocation and process; None when it does."""
    before, after = answer.before, answer.after
    if isinstance(before, Unknown) or isinstance(after, Unknown):
        return False, Reason.LOOK_INCOMPLETE, "the unit could not be read around the probe"
    if not invocation:
        return False, Reason.PROBE_PENDING, "the unit has no invocation that an answer could belong to"
    if before.invocation_id != invocation or after.invocation_id != invocation:
        return False, Reason.PROBE_PENDING, "the unit was restarted around the probe"
    if before.main_pid != after.main_pid or before.main_pid <= 0:
        return False, Reason.PROBE_PENDING, "the main process changed around the probe"
    return None


def _content(status: int, body: bytes, desired: Desired) -> Verdict:
    """The HTTP answer itself: 4xx from our own process is alive and refused, never a reason to restart."""
    view, role = desired.declared.view, desired.declared.role
    if status in (401, 403):
        return False, Reason.PROBE_UNAUTHORIZED, f"HTTP {status}: the server lives, the probe has no key"
    if 400 <= status < 500:
        return False, Reason.PROBE_REFUSED, f"HTTP {status}: {body[:200].decode('utf-8', 'replace')}"
    if not 200 <= status < 300:
        return False, Reason.GENERATION_FAILED, f"HTTP {status}: {body[:200].decode('utf-8', 'replace')}"
    if view.readiness.kind == "http" or role in ("prefill", "decode"):
        return True, Reason.GENERATED, ""
    return _generated(body, view)


def _generated(body: bytes, view: ServingSpec) -> Verdict:
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):  # the latter: brackets nested without end
        return False, Reason.GENERATION_FAILED, "the answer is not JSON"
    if not isinstance(said, dict):
        return False, Reason.GENERATION_FAILED, "the answer is not an object"
    model = said.get("model")
    if model is not None and model != view.served_name:
        return False, Reason.WRONG_MODEL, f"answered as {str(model)[:100]!r}, declared {view.served_name!r}"
    if view.readiness.kind in ("embeddings", "score"):
        return (True, Reason.GENERATED, "") if said.get("data") else (False, Reason.GENERATION_FAILED, "no data")
    usage = said.get("usage")
    tokens = usage.get("completion_tokens") if isinstance(usage, dict) else None
    if isinstance(tokens, int) and not isinstance(tokens, bool) and tokens >= 1:
        return True, Reason.GENERATED, f"{tokens} tokens"
    return False, Reason.GENERATION_FAILED, "the answer holds no generated token"


class Prober:
    """Asks one host's engines, through the same road as every command."""

    def __init__(self, road: Asks) -> None:
        self._road = road

    async def generate(self, desired: Desired, invocation: str) -> Verdict:
        """One generation of one unit; never raises for what host, road or engine did."""
        view = desired.declared.view
        method, path, body = generation_request(view, desired.declared.role, secrets.token_hex(8))
        try:
            answer = await self._probe(desired, method, path, body, duration_s(view.readiness.timeout))
        except TransportError as error:
            return False, Reason.TRANSPORT_LOST, error.message
        except (VerbFailed, VerbRefused) as error:
            return False, Reason.TOOL_FAILED, str(error)
        return judge(answer, desired, invocation)

    async def effective(self, desired: Desired, invocation: str) -> EffectiveFact | None:
        """What the engine of that invocation says is in effect; None where nothing is to be asked or nobody answered.

        An answer that is not surely of this invocation's own processes is no answer.
        """
        view = desired.declared.view
        path = effective.question(view, desired.declared.role)
        if path is None:
            return None
        try:
            answer = await self._probe(desired, "GET", path, None, EFFECTIVE_TIMEOUT_S)
        except (TransportError, VerbFailed, VerbRefused):
            return None
        if _unbound(answer, invocation) is not None or answer.strangers != ():
            return None
        if answer.failure is not None:
            return EffectiveFact(invocation, Unknown(answer.failure, answer.detail))
        return EffectiveFact(invocation, effective.claims(view, answer.http_status, answer.body))

    async def _probe(
        self, desired: Desired, method: str, path: str, body: dict[str, Any] | None, timeout_s: float
    ) -> ProbeAnswer:
        view = desired.declared.view
        lines = [("unit", desired.unit), ("port", str(view.port)), ("url-path", path), ("method", method)]
        lines += [("timeout-s", str(max(1, int(timeout_s)))), ("address", _near(view.listen))]
        if view.engine.python is not None:
            lines.append(("python", view.engine.python))
        data = b"" if body is None else json.dumps(body).encode()
        return _whole(await ask(self._road, "probe", lines, timeout_s=timeout_s + 15, body=data))

    async def serves(self, ports: tuple[int, ...], patience_s: float) -> bool | None:
        """Whether any of these ports generates or asks for a key: then whoever holds it is somebody's server.

        None when the host gave no full answer. A port that is silent or is no HTTP server does not serve.
        """
        unsure = False
        for port in ports:
            found = await self._port_serves(port, patience_s)
            if found:
                return True
            unsure = unsure or found is None
        return None if unsure else False

    async def _port_serves(self, port: int, patience_s: float) -> bool | None:
        """Asked at each address that somebody listens on: a server may be on one of them alone.

        Of several that share an address (SO_REUSEPORT) the kernel picks one for each connection: their silence tells
        nothing of the others. Nor does any while listeners come and go.
        """
        first = await self._plain(port, LOOPBACK, "GET", "/v1/models", None, patience_s)
        if first is None or isinstance(first.listeners, Unknown):
            return None
        doors, places = _doors(first), [listener.address for listener in first.listeners]
        unsure = doors is None or len(places) > len(set(places))
        known = {LOOPBACK: first}
        asked = (self._door(port, address, known.get(address), patience_s) for address in doors or ())
        for models, made in await asyncio.gather(*asked):  # side by side: each may take all its patience
            if _asks_for_a_key(models) or _asks_for_a_key(made) or _generated_here(made) or _refused(models, made):
                return True
            last = models if made is None else made
            told = last is not None and last.failure in _TELLS and last.listeners == first.listeners
            told = told and not _overloaded(models) and not _overloaded(made)
            unsure = unsure or not told
        return None if unsure else False

    async def _door(
        self, port: int, address: str, models: ProbeAnswer | None, patience_s: float
    ) -> tuple[ProbeAnswer | None, ProbeAnswer | None]:
        """What was answered at one address: its models, then a generation where it answers at all."""
        if models is None:
            models = await self._plain(port, address, "GET", "/v1/models", None, patience_s)
        if models is None or models.failure is not None or models.http_status in (401, 403):
            return models, None
        body = {"model": _first_model(models.body), "prompt": "1 2 3", "max_tokens": 4, "temperature": 0}
        made = await self._plain(port, address, "POST", "/v1/completions", body, patience_s)
        return (models, made) if made is not None else (None, None)

    async def _plain(
        self, port: int, address: str, method: str, path: str, body: dict[str, Any] | None, patience_s: float
    ) -> ProbeAnswer | None:
        lines = [("unit", NO_UNIT), ("port", str(port)), ("url-path", path), ("method", method)]
        lines += [("timeout-s", str(int(patience_s))), ("address", address)]
        data = b"" if body is None else json.dumps(body).encode()
        try:
            answer = await ask(self._road, "probe", lines, timeout_s=patience_s + 15, body=data)
        except (TransportError, VerbFailed, VerbRefused):
            return None
        found = parse_probe(answer)
        return None if isinstance(found, Unknown) else found


def _whole(answer: Answer) -> ProbeAnswer:
    found = parse_probe(answer)
    if isinstance(found, Unknown):
        raise TransportError(found.reason, found.detail)
    return found


def _near(listen: str) -> str:
    """Where the probe connects: loopback for a wildcard, else the declared address itself."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1", "localhost": "127.0.0.1"}.get(listen, listen)  # noqa: S104


def _asks_for_a_key(answer: ProbeAnswer | None) -> bool:
    return answer is not None and answer.failure is None and answer.http_status in (401, 403)


def _refused(models: ProbeAnswer | None, made: ProbeAnswer | None) -> bool:
    """It lists its models, and our generation is none of its kind (embeddings alone, a chat) or one too many."""
    return _generated_here(models) and made is not None and made.failure is None and made.http_status in _NOT_SO


def _overloaded(answer: ProbeAnswer | None) -> bool:
    """503 is of a full queue, of a load, or of the end: it tells nothing."""
    return answer is not None and answer.failure is None and answer.http_status == 503


def _generated_here(answer: ProbeAnswer | None) -> bool:
    return answer is not None and answer.failure is None and 200 <= answer.http_status < 300


def _doors(answer: ProbeAnswer) -> list[str] | None:
    """The addresses at which all who listen on the port are reached, by an answer at loopback; None: not all can be.

    The more exact address wins: a wildcard is reached where nobody listens on that very address.
    """
    assert not isinstance(answer.listeners, Unknown)
    here = {listener.address for listener in answer.listeners}
    doors = here - {"0.0.0.0", "::"}  # noqa: S104
    if "0.0.0.0" in here:  # noqa: S104
        doors.add(next((place for place in NEAR if place not in here), NEAR[0]))
    if not here and answer.failure is None:
        doors.add(LOOPBACK)  # somebody answered, and it was not seen who
    if "::" in here:
        dual = answer.failure is not Reason.CONNECTION_REFUSED and not here & {"0.0.0.0", LOOPBACK}  # noqa: S104
        if "::1" in here and not dual:
            return None
        doors.add(LOOPBACK if dual else "::1")
    return sorted(doors)


def _first_model(body: bytes) -> str:
    try:
        return str(json.loads(body)["data"][0]["id"])[:256]
    except (ValueError, LookupError, TypeError, RecursionError):
        return "default"
