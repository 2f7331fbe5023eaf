"""A preview, for people.

Invariant: everything of the preview is shown; nothing is summed up away.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from silo_agent.views.preview import Preview, Said

__all__ = ["lines"]


def lines(shown: Preview) -> Iterator[str]:
    """Line by line."""
    yield f"run {shown.run_id}, plan {shown.plan_sha256[:12]}, mode {shown.mode}"
    attempt = "not opened yet" if shown.attempt is None else str(shown.attempt)
    yield f"round {shown.round}, step {shown.step}, attempt {attempt}"
    yield f"cohort: {', '.join(shown.cohort) or 'not known yet'}"
    parts = (
        ("THE MASKED VECTOR", _vector(shown)),
        ("WHAT IT COSTS", _costs(shown)),
        ("WHAT IS SENT IN ONE ATTEMPT (Refuse only instead of it)", _requests(shown.attempt_says)),
        ("WHAT THE DAEMON SENDS BESIDE IT", _requests(shown.daemon_says)),
        ("WHAT NEVER LEAVES", (f"  {item}" for item in shown.never)),
    )
    for title, body in parts:
        yield ""
        yield title
        yield from body
    for note in shown.notes:
        yield f"note: {note}"


def _vector(shown: Preview) -> Iterator[str]:
    if shown.dimension is None or shown.upload_bytes is None:
        yield "  its size is not known yet"
    else:
        yield (
            f"  {shown.dimension} coordinates of the update ({shown.dimension_from}) and "
            f"{len(shown.metrics)} of metrics, {shown.upload_bytes} bytes"
        )
    yield from _noise(shown)
    if shown.upload_sha256 is not None:
        yield f"  in the spool now, ready to be sent: SHA-256 {shown.upload_sha256}"
    for figure in shown.metrics:
        noise = "" if figure.noise is None else f", noise of this silo {figure.noise:.4g}"
        yield f"  metric {figure.name}: from 0 to {figure.bound:g}{noise}"


def _costs(shown: Preview) -> Iterator[str]:
    for unit, cost in shown.charged.items():
        yield f"  this attempt: epsilon {cost:.4g} for each {unit} at delta {shown.delta:g}"
    for unit, cost in shown.charged_by_run.items():
        yield f"  the whole run: at most epsilon {cost:.4g} for each {unit}"
    if not shown.charged:
        yield "  nothing is charged: there is no noise, and no epsilon describes it"
    yield f"  ledger: record {shown.ledger_seq}, head {shown.ledger_sha256[:12]}"


def _noise(shown: Preview) -> Iterator[str]:
    trained = shown.trained_with
    if trained is not None:
        yield (
            f"  trained with noise, which is in it before it is masked: {trained.steps} steps a "
            f"round, each on a part {trained.sampling_rate:g} of the {trained.unit}s, the gradient "
            f"of each clipped to {trained.clip_l2:g}"
        )
        yield (
            f"  and on their sum noise of {trained.noise_multiplier:g} times that clip, "
            f"{trained.noise_multiplier * trained.clip_l2:g}; this silo alone adds all of it"
        )
    clipped = f"  clipped to {shown.clip_l2:g}; "
    mine = "" if shown.noise_per_silo is None else f"; this silo adds {shown.noise_per_silo:.4g}"
    if shown.noise_in_sum:
        on_top = "" if trained is None else "on top of that "
        yield (
            f"{clipped}{on_top}any sum that can be opened holds noise of at least "
            f"{shown.noise_in_sum:g}{mine}"
        )
    elif trained is not None:
        yield f"{clipped}no more noise is added when it is masked"
    else:
        yield f"{clipped}no noise on the update: masks alone hide it, and the sum is exact"


def _requests(requests: Sequence[Said]) -> Iterator[str]:
    for said in requests:
        times = f"{said.messages} messages, " if said.messages > 1 else ""
        yield f"  {said.request}: {times}{said.size_bytes} bytes"
        for field in said.fields:
            many = f" x{field.count}" if field.count > 1 else ""
            value = f" = {field.value}" if field.value else ""
            size = f"{field.size_bytes} bytes, {field.seen}"
            yield f"    {field.field}{many}{value} ({size}): {field.about}"
