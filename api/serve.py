"""The composition root: settings, store, controller and application put together, started, and stopped cleanly.

Run as `python -P -m api.serve`: `stoker serve` becomes this process. Everything is chosen by the environment, see
`daemon.settings`. The first SIGTERM or SIGINT lets requests end; a second one ends at once, and so does time.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NoReturn

if __name__ == "__main__":
    # Where rich is there structlog imports it, for tracebacks that are not wanted: 4 MiB that would stay.
    sys.modules["rich"] = None  # type: ignore[assignment]

import structlog
import uvicorn
import uvloop

from api.app import create_app
from api.seams import Context
from api.token import TOKEN_FILE, token_at
from daemon import __version__
from daemon.controller import Controller
from daemon.domain.errors import StokerError
from daemon.settings import Settings, load_settings, wall_clock
from daemon.store import Store

GRACEFUL_SHUTDOWN_S = 10
ENDS_WITHIN_S = GRACEFUL_SHUTDOWN_S + 10  # each wait after that of the API is bounded by less
KEEP_ALIVE_S = 30
MAX_REQUESTS_AT_ONCE = 200
log = structlog.get_logger("stoker")


async def serve(
    settings: Settings,
    *,
    stop: asyncio.Event,
    started: Callable[[str], None] = lambda url: None,
    store_type: type[Store] = Store,
    hands: Callable[[Store, Settings], Controller] = Controller,
) -> None:
    """Serve until `stop` is set; `started` is told the URL once it answers. May be called again after it returned.

    `store_type` and `hands` make the two halves that are not the API, for who watches every write and command of them.

    Raises: StokerError when it cannot start; an ExceptionGroup when a part of it broke.
    """
    token = await asyncio.to_thread(token_at, settings.data)
    async with store_type.open(settings.store_path, sole=True) as store:
        controller = hands(store, settings)
        context = Context(
            store=store, hands=controller, metrics=controller.metrics.render, now=wall_clock, version=__version__
        )
        with _bound(settings) as listener:
            url = _url(listener)
            log.info("listening", url=url, token=str(settings.data / TOKEN_FILE), store=store.uid)
            _warn_when_open(settings)
            server = _Server(_config(create_app(context, token)))
            await _until_stopped(server, listener, controller, stop, lambda: started(url))
    log.info("stopped")


async def _until_stopped(
    server: _Server, listener: socket.socket, controller: Controller, stop: asyncio.Event, started: Callable[[], None]
) -> None:
    """Both halves in one group. The API ends first, so that nobody is told "stored" by a daemon without hands."""
    async with asyncio.TaskGroup() as group:
        hands = group.create_task(controller.run(), name="controller")
        api = group.create_task(server.serve(sockets=[listener]), name="api")
        started()
        waiting = group.create_task(stop.wait(), name="stop")
        await asyncio.wait({waiting, hands, api}, return_when=asyncio.FIRST_COMPLETED)
        log.info("stopping")
        server.should_exit = True
        await asyncio.wait({api})
        hands.cancel()
        waiting.cancel()
    if not stop.is_set():
        raise StokerError("a part of the daemon ended by itself; the log says which")


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: the composition root has its own."""

    def capture_signals(self) -> Any:
        """Capture none."""
        return nullcontext()


def _config(app: Any) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=GRACEFUL_SHUTDOWN_S,
        limit_concurrency=MAX_REQUESTS_AT_ONCE,
    )


@contextmanager
def _bound(settings: Settings) -> Iterator[socket.socket]:
    """The listening socket, bound by us: uvicorn's own failure to bind is a SystemExit inside the group."""
    where = f"{settings.listen_host} port {settings.port}"
    try:
        found = socket.getaddrinfo(
            settings.listen_host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        listener = socket.socket(found[0][0], socket.SOCK_STREAM)
    except OSError as error:
        raise StokerError(f"cannot listen on {where}: {error.strerror}: set STOKER_LISTEN_HOST") from error
    with listener:
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(found[0][4])
            listener.listen(128)  # from here on a caller waits instead of being refused
        except OSError as error:
            raise StokerError(f"cannot listen on {where}: {error.strerror}: set STOKER_PORT") from error
        yield listener


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _warn_when_open(settings: Settings) -> None:
    if settings.listen_host not in ("127.0.0.1", "::1", "localhost"):
        log.warning(
            "the token, which is root on every host, crosses the network in clear text: listen on loopback behind TLS",
            listen_host=settings.listen_host,
        )


def set_up_logs(settings: Settings) -> None:
    """Logs to standard error: ours through structlog, the libraries' warnings beside them."""
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    json_lines = settings.log_format == "json"
    last: Any = structlog.processors.JSONRenderer() if json_lines else _console()
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *([structlog.processors.format_exc_info] if json_lines else []),
            last,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    logging.basicConfig(
        level=max(level, logging.WARNING), stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s"
    )


def _console() -> Any:
    # structlog's default, where rich is installed, prints the locals of every frame: secrets, and seconds of the loop.
    return structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback)


async def _serve_until_signal(settings: Settings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def asked() -> None:
        if stop.is_set():
            _leave(130)
        stop.set()
        loop.call_later(ENDS_WITHIN_S, _give_up)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked)
    await serve(settings, stop=stop)


def _give_up() -> None:
    """Something waits for something else: say what, of the tasks and of the threads."""
    log.error("not ended in time: given up", waiting=[repr(task)[:300] for task in asyncio.all_tasks()][:30])
    faulthandler.dump_traceback(sys.stderr)
    _leave(1)


def _leave(status: int) -> NoReturn:
    """Ends the process as it is. What was acknowledged survives that, as it does kill -9."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def main() -> int:
    """Serve with the settings of the environment; the exit status. Loop and threads stay, see below."""
    os.umask(0o077)
    try:
        settings = load_settings(os.environ)
        set_up_logs(settings)
        asyncio.Runner(loop_factory=uvloop.new_event_loop).run(_serve_until_signal(settings))
    except StokerError as error:
        print(f"stoker: {error}", file=sys.stderr)
        return 1
    except BaseExceptionGroup as group:
        log.error("broken", exc_info=group)
        return 1
    return 0


if __name__ == "__main__":
    # Not sys.exit: closing the loop, and Python's own end, wait for threads, and one that asks a name server which does
    # not answer, or reads a file of a dead disk, cannot be told to end.
    _leave(main())
