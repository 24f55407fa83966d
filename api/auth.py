"""The bearer token in front of every route but the two that say "alive". Compared in constant time."""

from __future__ import annotations

import hmac

from starlette.types import ASGIApp, Receive, Scope, Send

from api.problems import problem

OPEN_PATHS = frozenset({"/livez", "/readyz"})


class BearerAuth:
    """ASGI middleware: 401 for anything without the token, whether or not the path exists."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode("ascii")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer it."""
        if scope["type"] == "lifespan" or (scope["type"] == "http" and self._passes(scope)):
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            answer = problem(401, "a bearer token is needed", hint="send Authorization: Bearer TOKEN (see the README)")
            answer.headers["WWW-Authenticate"] = "Bearer"
            await answer(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})

    def _passes(self, scope: Scope) -> bool:
        if scope["path"] in OPEN_PATHS:
            return True
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(given) != 1:
            return False
        scheme, _, token = given[0].partition(b" ")
        return hmac.compare_digest(scheme.capitalize() + b" " + token.strip(), self._expected)
