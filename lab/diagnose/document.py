"""What ``chorale-lab diagnose`` leaves in its directory.

::

    SETTING/diagnose.json    the probes of a setting, every figure
    SETTING/report.md        the same for people, with probes.png
    observed.md, curves.png  patterns of what has run
    diagnose.json            predicted and observed patterns of all settings, side by side
    kept/KEY/                adapters that probes were made with, taken up by the next call

Invariant: an observed pattern is assigned before a prediction is read.

Covered: writing; reading back the predictions of earlier calls. Not covered: removing ``kept``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from evolution.diagnose.bounds import task_gap_bound
from evolution.diagnose.diagnosis import Diagnosis, as_data
from evolution.diagnose.patterns import RULE
from evolution.diagnose.report import menu_text, report_text, table
from federation.text import escaped
from lab.diagnose.observed import Observed, Seen
from lab.diagnose.plots import draw_curves, draw_probes
from ops.files import replace_file

__all__ = ["KEPT", "predictions", "summary", "write_observed", "write_probes", "write_summary"]

KEPT: Final = "kept"
DATA: Final = "diagnose.json"
_MAX_BYTES: Final = 1 << 22
_EPSILON: Final = 0.05
_DASH: Final = "–"


def write_probes(
    out: Path, setting: str, found: Diagnosis, *, chi2: tuple[float, ...], kinds: int
) -> Path:
    """Write one setting's probes; returns the report."""
    directory = out / setting
    directory.mkdir(parents=True, exist_ok=True)
    picture = draw_probes(found, directory / "probes.png")
    text = report_text(found, title=f"Diagnosis of {setting}", pictures=[picture])
    bound = task_gap_bound(
        chi2=max(chi2), silos=len(chi2), most_return=1.0, eps_approx=_EPSILON, eps_opt=_EPSILON
    )
    text += (
        f"\n## Tasks\n\nχ² of a silo's types of tasks to the mean of all {len(chi2)}: at most "
        f"{max(chi2):.3g} (it cannot exceed {len(chi2) - 1}). Were tasks all that differs, no silo "
        f"would lie more than {100 * min(1.0, bound):.1f} points below its best at ε_approx = "
        f"ε_opt = {_EPSILON} (theorem 2). All silos have {kinds} kinds of environments, of which "
        f"{len(found.worlds)} silos were compared.\n"
    )
    _write(directory / "report.md", text)
    data = {**as_data(found), "setting": setting, "chi2": list(chi2), "kinds": kinds}
    _write(directory / DATA, json.dumps(data, indent=1, sort_keys=True, allow_nan=False) + "\n")
    return directory / "report.md"


def predictions(out: Path) -> dict[str, str]:
    """The predicted pattern of every setting that was probed, by this call or an earlier one."""
    found = {}
    for path in sorted(out.glob(f"*/{DATA}")):
        try:
            if path.stat().st_size > _MAX_BYTES:
                continue
            data = json.loads(path.read_bytes())
            setting, pattern = data["setting"], data["predicted"]["pattern"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            # Half of a file, or somebody else's: such a setting counts as not probed.
            continue
        if pattern in ("A", "B", "C", "D") and path.parent.name == setting:
            found[setting] = pattern
    return found


def write_observed(out: Path, observed: Observed) -> Path:
    """Write the patterns of what has run; returns the page."""
    parts = [
        "# Observed patterns",
        (
            "Held-out success of the shared adapter at temperature "
            f"{observed.temperature:g}. The rule: plateau = mean over the last "
            f"{100 * RULE.tail:g} % of evaluations, margin {100 * RULE.margin:g} points, one-sided "
            f"{100 * RULE.confidence:g} % limits of Student's t over seeds; `docs/diagnostics.md` "
            "has all of it."
        ),
    ]
    if observed.seen:
        parts += [
            f"![]({draw_curves(observed.seen, out / 'curves.png')})",
            table(
                ("setting", "differs in", "baseline", "plateau", "difference", "pattern", "why"),
                [_row(one) for one in observed.seen],
            ),
        ]
    for one in observed.seen:
        if one.slack is not None:
            named = one.slack.slack or "not known"
            parts.append(f"{escaped(one.setting)}: dominant slack {named}: {one.slack.why}.")
            if one.slack.slack is not None:
                parts.append(menu_text(one.slack.slack))
        elif one.assigned.pattern == "D":
            parts += [f"{escaped(one.setting)}:", menu_text("D")]
    parts += [f"- {escaped(name)}: {why}" for name, why in observed.left_out.items()]
    _write(out / "observed.md", "\n\n".join(parts) + "\n")
    return out / "observed.md"


def summary(predicted: Mapping[str, str], observed: Observed | None) -> dict[str, Any]:
    """The one line: predicted and observed patterns by setting, null where there is none."""
    seen = {} if observed is None else {one.setting: one.assigned.pattern for one in observed.seen}
    return {
        "patterns": {
            name: {"predicted": predicted.get(name), "observed": seen.get(name)}
            for name in sorted({*predicted, *seen})
        },
        "federated_minus_best_local": None if observed is None else observed.minus_best_local,
        "federated_minus_central": None if observed is None else observed.minus_central,
    }


def write_summary(out: Path, said: Mapping[str, Any], observed: Observed | None) -> None:
    """Write the line, with every figure of the observed patterns beside it."""
    data = {**said, "observed": None if observed is None else as_data(observed)}
    _write(out / DATA, json.dumps(data, indent=1, sort_keys=True, allow_nan=False) + "\n")


def _row(one: Seen) -> tuple[str, ...]:
    found = one.assigned
    limits = f"[{_points(found.low)}, {_points(found.high)}]"
    return (
        escaped(one.setting),
        one.locus,
        escaped(one.baseline),
        _points(found.plateau),
        f"{_points(found.difference)} {limits}",
        found.pattern or _DASH,
        escaped(found.why),
    )


def _points(value: float) -> str:
    return f"{100 * value:.1f}" if abs(value) < float("inf") else ("−∞" if value < 0 else "∞")


def _write(path: Path, text: str) -> None:
    replace_file(path, (text.encode(),), mode=0o644)
