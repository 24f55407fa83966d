"""A recording as the answer that the helper gave, or would have given: what the reader of looks reads.

Called by `daemon.replay`. What is not in the recording is `NotRecorded`; one whose end mark never came is no look.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping

from daemon.domain.observation import Unknown
from daemon.domain.status import Reason
from daemon.probes import nvidia_smi
from daemon.probes.report import Answer, Section
from daemon.recording.columns import apps_text, gpus_text
from daemon.recording.form import MetaForm, RecordingForm, SectionForm
from daemon.recording.simple import AsDeclared, Hand


def answer_of(form: RecordingForm, declared: Mapping[str, AsDeclared] | None = None) -> Answer | Unknown:
    """All sections, the helper's own before those made of a simple form."""
    if not form.complete:
        last = next(reversed(_plain(form)), "none")
        return Unknown(Reason.LOOK_INCOMPLETE, f"the end mark never came; the last section is {last}")
    given = {name: _section(name, one, by_hand=form.helper is None) for name, one in _plain(form).items()}
    made = {name: Section(name, 0, 0, data) for name, data in _hand(form, given, declared or {}).sections().items()}
    return Answer("observe", form.helper or 0, form.exit_status, {**made, **given}, absent=Reason.NOT_RECORDED)


def _plain(form: RecordingForm) -> dict[str, SectionForm]:
    """The sections that are a tool's own output."""
    named = ("meta", "processes", "units", "sockets", "sessions")
    every = {name: getattr(form.sections, name) for name in named} | (form.sections.model_extra or {})
    found = {name: SectionForm(output=one) if isinstance(one, str) else one for name, one in every.items()}
    return {name: one for name, one in found.items() if isinstance(one, SectionForm)}


def _section(name: str, one: SectionForm, *, by_hand: bool) -> Section:
    """Who writes by hand may leave the last line's end out: whether it came, `complete` says."""
    data = data_of(one)
    if by_hand and one.base64 is None and data[-1:] not in (b"", b"\n", b"\0"):
        data += b"\n"
    if name == "gpus":
        data = gpus_text(data.decode("utf-8", "replace")).encode()
    elif name == "apps":
        data = apps_text(data.decode("utf-8", "replace")).encode()
    return Section(name, one.exit_status, one.took_ms or 0, data, one.complete)


def data_of(one: SectionForm) -> bytes:
    """The raw output. Raises: ValueError when the base64 is none (`base64_problem` finds it before)."""
    return base64.b64decode(one.base64, validate=True) if one.base64 is not None else (one.output or "").encode()


def base64_problem(form: RecordingForm) -> str | None:
    """The name of a section whose base64 cannot be read."""
    for name, one in _plain(form).items():
        try:
            data_of(one)
        except (binascii.Error, ValueError):
            return name
    return None


def _hand(form: RecordingForm, given: Mapping[str, Section], declared: Mapping[str, AsDeclared]) -> Hand:
    sections = form.sections
    apps = given.get("apps")
    rows = nvidia_smi.parse_apps(apps.exit_status, apps.text) if apps is not None else ()
    return Hand(
        meta=sections.meta if isinstance(sections.meta, MetaForm) else None,
        processes=sections.processes if isinstance(sections.processes, list) else None,
        units=sections.units if isinstance(sections.units, list) else None,
        sockets=sections.sockets if isinstance(sections.sockets, list) else None,
        sessions=sections.sessions if isinstance(sections.sessions, list) else None,
        card_pids=frozenset() if isinstance(rows, Unknown) else frozenset(row.pid for row in rows),
        declared=declared,
    )
