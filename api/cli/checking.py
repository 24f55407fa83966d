"""Manifests tried as the daemon would take them, by themselves. Called by `stoker check`, imported only then."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from api.cli.connect import SHORT
from api.cli.files import Found
from api.schemas import HostManifest, SpecManifest, parse_manifest
from daemon.declared import peers_of
from daemon.domain.errors import AdmissionError, Problem
from daemon.domain.host import HostSpec
from daemon.domain.observation import Unknown
from daemon.domain.spec import ServingSpec
from daemon.domain.status import Reason
from daemon.engines.check import warnings
from daemon.planner.admission import admit_host, admit_spec, hosts_of
from daemon.planner.desired import place
from daemon.planner.world import Declared, Desired, Record

Json = dict[str, Any]
_STORE, _UID = "STORE-UID", "SPEC-UID"
_UNSEEN = Unknown(Reason.NOT_OBSERVED_YET, "no host is looked at")


def checked(found: Sequence[Found]) -> list[Json]:
    """Each document with all that is wrong with it, beside the others of the same call."""
    parsed = [(item, _parsed(item)) for item in found]
    hosts = {m.metadata.name: m.spec for _, m in parsed if isinstance(m, HostManifest)}
    specs = {m.metadata.name: m.spec for _, m in parsed if isinstance(m, SpecManifest)}
    return [_one(item, manifest, hosts, specs) for item, manifest in parsed]


def _parsed(item: Found) -> HostManifest | SpecManifest | AdmissionError:
    try:
        return parse_manifest(item.document)
    except AdmissionError as error:
        return error


def _one(
    item: Found,
    manifest: HostManifest | SpecManifest | AdmissionError,
    hosts: dict[str, HostSpec],
    specs: dict[str, ServingSpec],
) -> Json:
    match manifest:
        case AdmissionError():
            return _document(item, manifest.problems)
        case HostManifest():
            return _document(item, admit_host(item.name, manifest.spec, hosts, specs))
        case SpecManifest():
            return _spec(item, manifest.spec, hosts, specs)


def _spec(item: Found, spec: ServingSpec, hosts: dict[str, HostSpec], specs: dict[str, ServingSpec]) -> Json:
    """A host that is not among the manifests may be declared already: what hangs on it is not checked."""
    away = [name for name in hosts_of(spec) if name not in hosts]
    known = hosts | {name: HostSpec.model_validate({"local": True}) for name in away}
    problems = admit_spec(item.name, spec, specs, known)
    notes = [f"host {name} is not among these manifests: its cards and ports are not checked" for name in away]
    made = [] if problems else _instances(item.name, spec, hosts)
    return _document(item, problems, warnings(spec), notes, made)


def _instances(name: str, spec: ServingSpec, hosts: dict[str, HostSpec]) -> list[Json]:
    peers = tuple(peers_of(spec, hosts))
    made = []
    for role in spec.role_names():
        view = spec.role_view(role)
        gpus = tuple((index, f"UUID-OF-GPU-{index}") for index in (view.placement.gpus if view.placement else ()))
        declared = Declared(name, _UID, 1, role, spec, view, Record(unit="", path="", gpus=gpus))
        one = place(declared, _UNSEEN, _STORE, peers)
        if isinstance(one, Desired):
            made.append(_instance(one))
    return made


def _instance(one: Desired) -> Json:
    return {
        "role": one.declared.role,
        "host": one.declared.view.placement.host if one.declared.view.placement else "",
        "unit": one.unit,
        "path": one.path,
        "gpus": [index for index, _ in one.gpus],
        "ports": list(one.ports),
        "argv": list(one.launch.argv),
        "env": dict(one.launch.env),
        "user": one.launch.user or "root",
        "unitText": one.text.replace(one.launch_hash, "LAUNCH-HASH"),
    }


def _document(
    item: Found,
    problems: Sequence[Problem],
    warned: Sequence[Problem] = (),
    notes: Sequence[str] = (),
    instances: Sequence[Json] = (),
) -> Json:
    return {
        "origin": item.origin,
        "kind": SHORT[item.kind],
        "name": item.name,
        "problems": [_problem(one) for one in problems],
        "warnings": [_problem(one) for one in warned],
        "notes": list(notes),
        "instances": list(instances),
    }


def _problem(one: Problem) -> dict[str, str]:
    return {"path": one.path, "message": one.message} | ({"hint": one.hint} if one.hint else {})
