"""The argv of a custom engine: the spec's command as it stands. Called by `launch`."""

from __future__ import annotations

from daemon.domain.spec import ServingSpec
from daemon.engines.arguments import given_words, spelled


def argv(view: ServingSpec) -> tuple[str, ...]:
    """The declared command, then `args` as flags in their own order."""
    words = [word for name, value in view.args.items() for word in given_words(spelled(name), value)]
    return (*(view.engine.command or ()), *words)
