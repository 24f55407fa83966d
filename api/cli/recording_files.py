"""Recordings and manifests from files: read whole, and every error with its file and path.

Called by `replay` and `record -f`; imported only when one of them runs.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from api.cli.files import Found, found_in
from api.manifest import read_json, read_yaml
from api.schemas import HostManifest, SpecManifest, parse_manifest, problems_of
from daemon.domain.errors import AdmissionError, Problem, StokerError
from daemon.domain.host import HostSpec
from daemon.recording.answer import base64_problem
from daemon.recording.form import RecordingForm
from daemon.replay import SpecOf

MAX_RECORDING_BYTES = 96 * 1024 * 1024


def read_recording(source: str, more: list[Found]) -> tuple[RecordingForm, list[Found]]:
    """The recording in a file and all manifests: those given outrank those beside it, and these what it knows."""
    origin, documents = documents_of(source)
    recordings = [one for one in documents if isinstance(one, dict) and "recording" in one]
    if len(recordings) != 1:
        hint = "a recording has the key recording: stoker/v1; stoker record --example prints one"
        raise AdmissionError([Problem(origin, f"{len(recordings)} recordings in it, not one", hint)])
    try:
        form = RecordingForm.model_validate(recordings[0], by_alias=True, by_name=True)
    except ValidationError as error:
        raise _at(origin, problems_of(error, recordings[0])) from None
    if (bad := base64_problem(form)) is not None:
        raise AdmissionError([Problem(f"{origin}: sections.{bad}.base64", "is not base64")])
    others = [_found(origin, one) for one in documents if one is not recordings[0]]
    known = [_found(f"{origin}: knows", one) for one in form.knows.manifests]
    return form, list({(one.kind, one.name): one for one in (*known, *others, *more)}.values())


def declared_in(found: list[Found]) -> tuple[dict[str, HostSpec], list[SpecOf]]:
    """Hosts by name, and specs."""
    hosts, specs = dict[str, HostSpec](), list[SpecOf]()
    for one in found:
        try:
            manifest = parse_manifest(one.document)
        except AdmissionError as error:
            raise _at(one.origin, error.problems) from None
        match manifest:
            case HostManifest():
                hosts[manifest.metadata.name] = manifest.spec
            case SpecManifest():
                about = manifest.metadata
                specs.append(SpecOf(about.name, manifest.spec, about.uid, about.generation or 1))
    return hosts, specs


def _found(origin: str, document: Any) -> Found:
    try:
        return found_in(origin, document)
    except AdmissionError as error:
        raise _at(origin, error.problems) from None


def _at(origin: str, problems: list[Problem]) -> AdmissionError:
    return AdmissionError([Problem(f"{origin}: {its.path}".rstrip(": "), its.message, its.hint) for its in problems])


def documents_of(source: str) -> tuple[str, list[Any]]:
    """Where it was read, and every document in it."""
    origin = "standard input" if source == "-" else source
    try:
        if source == "-":
            data = sys.stdin.buffer.read(MAX_RECORDING_BYTES + 1)
        else:
            with Path(source).open("rb") as file:
                data = file.read(MAX_RECORDING_BYTES + 1)
    except OSError as error:
        raise StokerError(f"{source}: {error.strerror}") from error
    try:
        if data.lstrip(b"\xef\xbb\xbf \t\r\n").startswith((b"{", b"[")):
            return origin, [read_json(data, MAX_RECORDING_BYTES)]
        return origin, read_yaml(data, MAX_RECORDING_BYTES)
    except AdmissionError as error:
        raise _at(origin, error.problems) from None
