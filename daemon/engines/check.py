"""What an engine would refuse or quietly do otherwise, said before anything is stored. Called by admission and `check`.

`check` returns what is refused, `warnings` what is only worth a look. Rules between objects are the planner's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from posixpath import normpath

from daemon.domain.errors import Problem
from daemon.domain.spec import ServingSpec
from daemon.domain.text import duration_s
from daemon.engines import sglang
from daemon.engines.check_custom import custom_findings
from daemon.engines.check_flags import flag_findings
from daemon.engines.check_speculative import speculative_findings
from daemon.engines.findings import Finding, Seat, refuse, seats, warn
from daemon.engines.launch import RESERVED_ENV, render
from daemon.engines.quoting import is_noncharacter
from daemon.engines.redact import is_secret_name, redact

_VLLM_SIZES = ("--tensor-parallel-size", "--pipeline-parallel-size", "--data-parallel-size")
_SPREAD = ("--nnodes", "--base-gpu-id", "--gpu-id-step", "--device-ids", "--data-parallel-size-local")
_SPREAD_VLLM = ("--data-parallel-rank", "--data-parallel-start-rank", "--data-parallel-address", "--headless")


def check(spec: ServingSpec) -> list[Problem]:
    """Why this spec is refused; empty when it may be stored."""
    return [finding.problem for finding in _findings(spec) if finding.refused]


def warnings(spec: ServingSpec) -> list[Problem]:
    """What a person should look at in a spec that may be stored."""
    return [finding.problem for finding in _findings(spec) if not finding.refused]


def _findings(spec: ServingSpec) -> list[Finding]:
    """Each finding once, though several roles may share the field."""
    found: dict[Finding, None] = dict.fromkeys(_of_spec(spec))
    for seat in seats(spec):
        for rule in (_of_executable, _of_text, _of_env, _of_gpus, flag_findings, speculative_findings, custom_findings):
            found |= dict.fromkeys(rule(seat))
    return list(found)


def _of_spec(spec: ServingSpec) -> Iterator[Finding]:
    if spec.roles is not None and spec.engine.name != "sglang":
        yield refuse("spec.roles", f"engine {spec.engine.name} has no roles", "prefill, decode and router are SGLang's")
    if duration_s(spec.stop.timeout) <= 0:
        yield refuse("spec.stop.timeout", "systemd takes 0 for no limit at all", "give at least 1s")
    folder = spec.working_directory
    if folder is not None and (folder != folder.rstrip() or folder.endswith("\\")):
        yield refuse("spec.workingDirectory", "systemd cannot be told a folder that ends in a blank or a backslash")
    if spec.model is not None and spec.model.path.startswith("-"):
        yield refuse("spec.model.path", "begins with '-' and would be taken for a flag")
    if spec.engine.name == "sglang" and spec.model is not None and ":" in (spec.model.served_name or ""):
        yield refuse("spec.model.servedName", "SGLang refuses a name with a colon")


def _of_executable(seat: Seat) -> Iterator[Finding]:
    engine = seat.view.engine
    path = "spec.engine.python" if engine.python is not None else "spec.engine.command[0]"
    exe = engine.python or (engine.command or ("",))[0]
    if not exe.startswith("/"):
        yield refuse(path, f"{exe!r} is not an absolute path", "name the executable in full, like /usr/bin/x")
    elif re.search(r"[\\\"']", exe):
        yield refuse(path, "systemd refuses quotes and backslashes in the name of an executable")
    elif normpath(exe) != exe or exe.startswith("//") or exe == "/":
        yield refuse(path, "is not the plain path of a file", f"write {'/' + normpath(exe).lstrip('/')}")
    elif engine.python is not None and not re.fullmatch(r"(python|pypy)[0-9.]*t?", exe.rsplit("/", 1)[-1]):
        yield warn(path, "does not look like a Python interpreter")


def _of_text(seat: Seat) -> Iterator[Finding]:
    """Characters that systemd drops together with the whole line or variable that holds them."""
    launch = render(seat.view, seat.role, (), seat.spec)
    for name, value in (*(("argv", word) for word in launch.argv), *launch.env):
        bad = next((char for char in value if is_noncharacter(char) or ord(char) < 0x20 or ord(char) == 0x7F), None)
        if bad is not None:
            path = "spec" if name == "argv" else seat.path(f"env.{name}")
            yield refuse(path, f"character U+{ord(bad):04X} in {name} {redact(value)[:60]!r} is not allowed")


def _of_env(seat: Seat) -> Iterator[Finding]:
    for name, value in seat.view.env.items():
        path = seat.path(f"env.{name}")
        if name in RESERVED_ENV or name.startswith("STOKER_"):
            yield refuse(path, f"{name} is set by Stoker", "cards are declared by placement.gpus")
        elif value and (is_secret_name(name) or redact(f"x {value}") != f"x {value}"):
            yield warn(path, f"{name} looks like a secret; the unit file on the host is readable by everybody there")


def _of_gpus(seat: Seat) -> Iterator[Finding]:
    gpus = seat.view.placement.gpus if seat.view.placement is not None else ()
    path = seat.path("placement.gpus")
    for at, index in enumerate(gpus):
        if index in gpus[:at]:
            yield refuse(f"{path}[{at}]", f"GPU {index} is named twice")
    if seat.role == "router":
        if gpus:
            yield warn(path, "a router uses no GPU")
    elif seat.flags is not None and not gpus:
        device = seat.given("--device")
        if device is None or device[1] != "cpu":
            yield warn(path, "without GPUs here the engine sees none")
    elif not any(seat.given(flag) for flag in _SPREAD):
        yield from _of_sizes(seat, len(gpus))


def _of_sizes(seat: Seat, count: int) -> Iterator[Finding]:
    """The product of the parallel sizes is the number of cards, unless it cannot be known from here."""
    if seat.view.engine.name == "sglang":
        yield from _of_sglang_sizes(seat, count)
    elif seat.view.engine.name == "vllm" and not any(seat.given(flag) for flag in _SPREAD_VLLM):
        sizes = seat.view.parallelism
        declared = (sizes.tensor, sizes.pipeline, sizes.data)
        yield from _product(seat, count, [seat.number(n, flag) for n, flag in zip(declared, _VLLM_SIZES, strict=True)])


def _of_sglang_sizes(seat: Seat, count: int) -> Iterator[Finding]:
    sizes = seat.view.parallelism
    tensor, pipeline = seat.number(sizes.tensor, *sglang.TP), seat.number(sizes.pipeline, *sglang.PP)
    data = seat.number(sizes.data, *sglang.DP)
    attention = seat.given("--enable-dp-attention")
    inside = attention is not None and attention[1] is True  # attention replicas share the tensor group's cards
    if inside and tensor and data and tensor % data:
        yield refuse(seat.path("parallelism.data"), f"data {data} does not divide tensor {tensor}")
    yield from _product(seat, count, [tensor, pipeline, 1 if inside else data])


def _product(seat: Seat, count: int, sizes: list[int | None]) -> Iterator[Finding]:
    if None in sizes:
        return
    tensor, pipeline, data = (size or 1 for size in sizes)
    needed = tensor * pipeline * data
    if needed != count:
        message = f"tensor {tensor} x pipeline {pipeline} x data {data} uses {needed} GPUs, the placement has {count}"
        yield refuse(seat.path("parallelism"), message, f"make the product {count}, or place {needed} GPUs")
