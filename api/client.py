"""The API as a Python object, blocking: used by the command line and by tests. Knows no tables and prints nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any
from urllib.parse import quote

import httpx

from daemon.domain.errors import Problem, StokerError

PREFIX = "/api/v1"
TIMEOUT_S = 60.0  # doctor and takeover wait for a host
CONNECT_TIMEOUT_S = 5.0


class Unreachable(StokerError):
    """No daemon answered at the URL."""


class Refused(StokerError):
    """The daemon answered with a problem. `status` is HTTP's; `problems` name the wrong places of a manifest."""

    def __init__(self, status: int, detail: str, hint: str = "", problems: tuple[Problem, ...] = ()) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.hint = hint
        self.problems = problems


@dataclass(frozen=True, slots=True)
class Applied:
    """What became of a manifest: `outcome` is created, configured or unchanged."""

    outcome: str
    object: dict[str, Any]
    warnings: tuple[Problem, ...] = ()


class Client:
    """One daemon. Every method raises Unreachable or Refused; `kind` is the plural in the address."""

    def __init__(self, url: str, token: str, *, actor: str = "", transport: httpx.BaseTransport | None = None) -> None:
        headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
        if actor:
            headers["Stoker-Actor"] = actor
        self._url = url.rstrip("/")
        timeout = httpx.Timeout(TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
        # The environment's proxies are for the world outside, and must not see the token.
        self._http = httpx.Client(headers=headers, timeout=timeout, transport=transport, trust_env=False)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def put(self, kind: str, name: str, document: Mapping[str, Any]) -> Applied:
        """Declare one object."""
        answer = self._call("PUT", f"{PREFIX}/{kind}/{_part(name)}", json=dict(document))
        body = answer.json()
        warnings = _problems(body.pop("warnings", []))
        return Applied(answer.headers.get("Stoker-Outcome", ""), body, warnings)

    def get(self, kind: str, name: str) -> dict[str, Any]:
        """One object with its status."""
        return self._json("GET", f"{PREFIX}/{kind}/{_part(name)}")

    def objects(self, kind: str, selector: str = "") -> list[dict[str, Any]]:
        """All objects of a kind, by name."""
        items: list[dict[str, Any]] = self._json("GET", f"{PREFIX}/{kind}", params={"labelSelector": selector})["items"]
        return items

    def delete(self, kind: str, name: str, *, abandon: bool = False) -> dict[str, Any]:
        """Delete; the object as it terminates, or with `abandon` what was left. Empty for what is gone at once."""
        params = {"abandon": "true"} if abandon else None
        answer = self._call("DELETE", f"{PREFIX}/{kind}/{_part(name)}", params=params)
        found: dict[str, Any] = answer.json() if answer.content else {}
        return found

    def events(self, kind: str | None = None, name: str | None = None, limit: int = 50) -> list[dict[str, Any]]:
        """The last events, newest first; `kind` is Host or ServingSpec."""
        params = {key: value for key, value in (("kind", kind), ("name", name), ("limit", limit)) if value is not None}
        items: list[dict[str, Any]] = self._json("GET", f"{PREFIX}/events", params=params)["items"]
        return items

    def history(self, name: str) -> dict[str, Any]:
        """All generations of a spec."""
        return self._json("GET", f"{PREFIX}/servingspecs/{_part(name)}/history")

    def pause(self) -> dict[str, Any]:
        """Stop every change on every host."""
        return self._json("PUT", f"{PREFIX}/pause")

    def resume(self) -> dict[str, Any]:
        """Let changes be made again."""
        return self._json("DELETE", f"{PREFIX}/pause")

    def paused(self) -> dict[str, Any]:
        """Whether it is paused, by whom and since when."""
        return self._json("GET", f"{PREFIX}/pause")

    def doctor(self, host: str) -> list[dict[str, Any]]:
        """Each thing a host needs."""
        checks: list[dict[str, Any]] = self._json("POST", f"{PREFIX}/hosts/{_part(host)}/doctor")["checks"]
        return checks

    def record(self, host: str) -> dict[str, Any]:
        """One look at a host, whole."""
        return self._json("POST", f"{PREFIX}/hosts/{_part(host)}/record")

    def takeover(self, host: str) -> dict[str, Any]:
        """Take a host's fence whoever holds it."""
        return self._json("POST", f"{PREFIX}/hosts/{_part(host)}/takeover")

    def strays(self, host: str, *, managed: bool = False) -> dict[str, Any]:
        """Who holds what on a host, as last seen; with the managed ones or without."""
        return self._json("GET", f"{PREFIX}/hosts/{_part(host)}/strays", params={"all": str(managed).lower()})

    def clear(self, host: str, boot_id: str, processes: list[dict[str, int]]) -> dict[str, Any]:
        """Ask to clear these, each {pid, startTicks} as listed; what was accepted, and what refused and why."""
        document = {"bootId": boot_id, "processes": processes}
        return self._json("POST", f"{PREFIX}/hosts/{_part(host)}/strays/clear", json=document)

    def version(self) -> dict[str, Any]:
        """The daemon's version and store."""
        return self._json("GET", f"{PREFIX}/version")

    def _json(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        body: dict[str, Any] = self._call(method, path, **more).json()
        return body

    def _call(self, method: str, path: str, **more: Any) -> httpx.Response:
        try:
            answer = self._http.request(method, self._url + path, **more)
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise Unreachable(f"{self._url} is no URL of a daemon: {error}") from error
        except httpx.TransportError as error:
            raise Unreachable(f"no answer from {self._url}: {str(error) or type(error).__name__}") from error
        if answer.is_success:
            return answer
        raise _refused(answer)


def _part(name: str) -> str:
    return quote(name, safe="")


def _problems(items: list[dict[str, str]]) -> tuple[Problem, ...]:
    return tuple(Problem(item["path"], item["message"], item.get("hint", "")) for item in items)


def _refused(answer: httpx.Response) -> Refused:
    try:
        body = answer.json()
        problems = _problems(body.get("errors", []))
        return Refused(answer.status_code, str(body["detail"]), str(body.get("hint", "")), problems)
    except (ValueError, KeyError, TypeError, AttributeError):
        return Refused(
            answer.status_code, f"HTTP {answer.status_code}, and no Stoker behind that URL", "check STOKER_URL"
        )
