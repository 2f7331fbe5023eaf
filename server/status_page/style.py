"""How the page looks: one style sheet, in light and dark, from a phone to a wall.

Invariants:

1. Text has a contrast of at least 4.5 on whatever it stands on, in both schemes
   (``tests/server/status_page/test_style.py`` computes it).
2. No colour says anything alone: a sign's shape, a word or a place says it too.
3. Nothing is wider than the screen, down to 360 pixels; nothing moves.

Covered: both schemes, narrow and wide screens, print. Not covered: browsers without CSS variables.
"""

from __future__ import annotations

from typing import Final

__all__ = ["DARK", "LIGHT", "STYLE"]

LIGHT: Final = {
    "paper": "#f5f6f4", "card": "#ffffff", "ink": "#1c2328", "soft": "#57636d",
    "line": "#dfe3e1", "sunk": "#eef1ef", "link": "#1d5f8a",
    "good": "#18774a", "good-tint": "#e7f3ec", "good-bar": "#3a9a6c",
    "watch": "#8a5200", "watch-tint": "#fcf1dd", "watch-bar": "#d08a1d",
    "alarm": "#b3261e", "alarm-tint": "#fbe9e7", "alarm-bar": "#d64a41",
    "training": "#a3b1bd", "advertise_keys": "#b9dcd5", "share_keys": "#7fc4b8",
    "masked_input": "#2f9c8d", "consistency_check": "#1d766b", "unmask": "#0f524a",
    "aggregate": "#8d6cc0", "other": "#888888", "curve": "#1f7a8c", "band": "#cfe4e8",
    "kept": "#6aa6b2",
}  # fmt: skip
"""Names to colours by day."""
DARK: Final = {
    "paper": "#101417", "card": "#181e22", "ink": "#e6ebee", "soft": "#a2aeb7",
    "line": "#2a333a", "sunk": "#20282d", "link": "#84c3ee",
    "good": "#6fd09c", "good-tint": "#14271e", "good-bar": "#3f9f70",
    "watch": "#f0b95f", "watch-tint": "#2b2213", "watch-bar": "#c98b2b",
    "alarm": "#ff9b92", "alarm-tint": "#331a18", "alarm-bar": "#d9584e",
    "training": "#566673", "advertise_keys": "#1f5a53", "share_keys": "#2a7d73",
    "masked_input": "#3ba799", "consistency_check": "#74c9bd", "unmask": "#b7e6de",
    "aggregate": "#a58ad6", "other": "#888888", "curve": "#6cc3d5", "band": "#1f3c44",
    "kept": "#3a7c8a",
}  # fmt: skip
"""The same names by night."""


def _variables(colours: dict[str, str]) -> str:
    return "".join(f"--{name}:{colour};" for name, colour in colours.items())


_PHASES: Final = (
    "training", "advertise_keys", "share_keys", "masked_input", "consistency_check", "unmask",
    "aggregate", "other",
)  # fmt: skip

_RULES: Final = """
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0 auto;padding:0 20px 32px;max-width:1180px;background:var(--paper);color:var(--ink);
font:15px/1.5 ui-sans-serif,system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans","DejaVu Sans",
sans-serif;font-variant-numeric:tabular-nums;overflow-wrap:anywhere}
h1,h2,h3,p,ul,ol,dl,dd,figure,table,pre{margin:0;padding:0}
ul,ol{list-style:none}
a{color:var(--link);text-underline-offset:2px}
a:focus-visible{outline:2px solid var(--link);outline-offset:3px;border-radius:3px}
code,pre{font-family:ui-monospace,"SF Mono",Menlo,Consolas,"DejaVu Sans Mono",monospace;
font-size:.9em}
.soft,.hint,.exact{color:var(--soft)}
.warn{color:var(--watch);font-weight:600}
.hidden,.skip:not(:focus){position:absolute;width:1px;height:1px;overflow:hidden;
clip-path:inset(50%);white-space:nowrap}
.skip:focus{position:absolute;top:8px;left:8px;padding:6px 12px;background:var(--card)}
header{display:flex;justify-content:space-between;align-items:baseline;gap:4px 24px;
flex-wrap:wrap;padding:14px 2px 12px}
.home{display:flex;align-items:baseline;gap:10px;color:inherit;text-decoration:none}
.federation{font-size:18px;font-weight:650;letter-spacing:-.01em}
.state{display:flex;gap:14px;color:var(--soft);font-size:14px}
.state time{color:var(--ink)}
main{display:grid;gap:16px;grid-template-columns:minmax(0,1fr)}
.banner{display:grid;grid-template-columns:auto minmax(0,1fr);gap:2px 14px;padding:16px 20px;
border-radius:12px;border:1px solid var(--line);background:var(--card)}
.banner>div:first-child{grid-column:1/-1}
.banner h1{font-size:22px;line-height:1.3;font-weight:650;letter-spacing:-.015em}
.banner.well{background:var(--good-tint);border-color:var(--good-tint)}
.banner.watch{background:var(--watch-tint);border-color:var(--watch-tint)}
.banner.alarm{background:var(--alarm-tint);border-color:var(--alarm-bar)}
.well h1,.well .symbol{color:var(--good)}
.watch h1,.watch .symbol{color:var(--watch)}
.alarm h1,.alarm .symbol{color:var(--alarm)}
.symbol{width:30px;height:30px;fill:none;stroke:currentColor;stroke-width:2;
stroke-linecap:round;stroke-linejoin:round}
.concerns{margin-top:12px;display:grid;gap:10px}
.concerns li{padding-left:12px;border-left:3px solid var(--watch-bar);display:grid}
.concerns .alarm{border-color:var(--alarm-bar)}
.concerns strong{font-weight:600}
.advice{color:var(--ink)}
.runbook{color:var(--soft);font-size:13px}
.tiles{display:grid;grid-template-columns:repeat(4,minmax(0,1fr));gap:16px}
.tile,.card{background:var(--card);border:1px solid var(--line);border-radius:12px}
.tile{padding:14px 16px 16px;display:flex;flex-direction:column;gap:4px;font-size:14px}
.tile h2{font-size:13px;font-weight:600;color:var(--soft)}
.big{font-size:26px;line-height:1.25;font-weight:650;letter-spacing:-.02em}
.of{font-size:15px;font-weight:450;color:var(--soft);letter-spacing:0}
.meter{display:block;width:100%;height:8px;margin:4px 0 6px;border-radius:4px;overflow:hidden}
.track{fill:var(--sunk)}.plain{fill:var(--curve)}.meter .good{fill:var(--good-bar)}
.meter .warn{fill:var(--watch-bar)}.meter .bad{fill:var(--alarm-bar)}
.tick{stroke:var(--ink);stroke-width:1.5;vector-effect:non-scaling-stroke;opacity:.55}
.waited{display:grid;gap:2px}
.waited li{display:flex;flex-wrap:wrap;gap:0 8px}
.name{font-weight:600}
.tile .exact{font-size:13px}
.card{padding:16px 20px 18px;display:grid;gap:12px;grid-template-columns:minmax(0,1fr);
align-content:start}
.title{display:flex;flex-wrap:wrap;justify-content:space-between;align-items:baseline;gap:0 16px}
.card h2{font-size:16px;font-weight:650}
.hint{font-size:13px}
.empty{color:var(--soft)}
.pair{display:grid;grid-template-columns:repeat(2,minmax(0,1fr));gap:16px}
table{width:100%;border-collapse:collapse;font-size:14px}
th,td{padding:7px 12px 7px 0;text-align:left;vertical-align:top;border-top:1px solid var(--line);
font-weight:400}
th:last-child,td:last-child{padding-right:0}
thead th{border-top:0;padding-top:0;color:var(--soft);font-size:13px;white-space:nowrap}
tbody th{font-weight:600}
.notes{font-size:13px;color:var(--soft)}
.pill{display:inline-block;padding:0 8px;border-radius:10px;font-size:13px;font-weight:550;
background:var(--sunk);color:var(--ink)}
.pill.good{background:var(--good-tint);color:var(--good)}
.pill.watch{background:var(--watch-tint);color:var(--watch)}
.pill.bad{background:var(--alarm-tint);color:var(--alarm)}
.timeline th:first-child{width:60px}
.live::after{content:" \\2022";color:var(--good)}
.timeline th:nth-child(2),.timeline td:nth-child(2){width:84px;color:var(--soft)}
.timeline th:last-child,.timeline td:last-child{width:96px;text-align:right;white-space:nowrap}
.adapters code{white-space:nowrap}
.adapters th:first-child{width:76px}
.bar{display:block;width:100%;height:14px;margin-top:4px;overflow:visible}
.timeline .notes{margin-top:3px}
.legend{display:flex;flex-wrap:wrap;gap:4px 16px;font-size:13px;color:var(--soft)}
.legend li{display:flex;align-items:center;gap:6px}
.swatch{width:12px;height:12px;border-radius:3px}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(280px,100%),1fr));
gap:20px 28px}
figure{display:grid;gap:6px;grid-template-columns:minmax(0,1fr);align-content:start}
figcaption{display:flex;justify-content:space-between;align-items:baseline;gap:12px}
figcaption h3{font-size:14px;font-weight:550}
.newest{font-weight:650;white-space:nowrap}
.newest .soft{font-weight:400}
.plot{position:relative;padding-left:44px}
.plot>span{position:absolute;left:0;width:38px;text-align:right;white-space:nowrap;font-size:12px;line-height:1;
color:var(--soft)}
.top{top:0}.bottom{bottom:0}
.chart{display:block;width:100%;height:104px;overflow:visible}
.chart path,.chart rect{vector-effect:non-scaling-stroke}
.grid{stroke:var(--line);stroke-width:1}
.mark{stroke:var(--watch-bar);stroke-width:1.5;stroke-dasharray:3 3}
.band{fill:var(--band);stroke:var(--band);stroke-width:1}
.line{fill:none;stroke:var(--curve);stroke-width:2;stroke-linejoin:round;stroke-linecap:round}
.dot{fill:none;stroke:var(--curve);stroke-width:8;stroke-linecap:round}
.slice{fill:var(--ink);fill-opacity:0}.slice:hover{fill-opacity:.06}
.kept{fill:var(--kept)}.lost{fill:var(--watch-bar)}
.axis{display:flex;justify-content:space-between;padding-left:44px;font-size:12px;
color:var(--soft)}
.figures ul{display:flex;flex-wrap:wrap;gap:0 16px}
.column{display:grid;gap:10px;grid-template-columns:minmax(0,1fr)}
.stack{display:grid;gap:16px;grid-template-columns:minmax(0,1fr);align-content:start}
time span{white-space:nowrap}
.silos{table-layout:fixed}.silos th:first-child{width:34%}
.facts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(260px,100%),1fr));
gap:12px 28px}
.stack .facts{grid-template-columns:repeat(auto-fill,minmax(min(200px,100%),1fr))}
.facts dt{font-size:13px;color:var(--soft)}
.steps{display:grid;gap:14px;counter-reset:step}
.steps li{position:relative;padding-left:44px;counter-increment:step}
.steps li::before{content:counter(step);position:absolute;left:0;top:0;width:28px;height:28px;
border-radius:14px;border:1.5px solid var(--line);display:grid;place-items:center;
font-size:14px;font-weight:600;color:var(--soft)}
.steps .done::before{content:"\\2713";background:var(--good-tint);border-color:var(--good-tint);
color:var(--good)}
.steps .next::before{background:var(--ink);border-color:var(--ink);color:var(--card)}
.steps h3{font-size:15px;font-weight:600;display:flex;flex-wrap:wrap;gap:8px;align-items:center}
.steps p{color:var(--soft)}
pre{margin-top:8px;padding:10px 14px;border-radius:8px;background:var(--sunk);
white-space:pre-wrap;line-height:1.7}
footer{display:flex;flex-wrap:wrap;justify-content:space-between;gap:4px 24px;padding:20px 2px 0;
font-size:13px;color:var(--soft)}
@media (max-width:960px){.tiles{grid-template-columns:repeat(2,minmax(0,1fr))}
.pair{grid-template-columns:minmax(0,1fr)}.silos .exact{display:block}
.silos th:first-child{width:26%}}
@media (max-width:560px){body{padding:0 12px 24px}.banner{padding:14px 14px;gap:2px 10px}
.banner h1{font-size:20px}.symbol{width:26px;height:26px}.concerns{margin-left:-36px}
.tiles{gap:12px;grid-template-columns:minmax(0,1fr)}main{gap:12px}
.card{padding:14px 14px 16px}.tile{padding:12px 14px 14px}
.timeline th:first-child{width:48px}.timeline th:last-child,.timeline td:last-child{width:76px}
.timeline th:nth-child(2),.timeline td:nth-child(2){display:none}th,td{padding-right:8px}
.pair,.stack{display:contents}#federation{order:1}
.silos th:first-child{width:auto}.stacked thead{display:none}
.stacked tr{display:grid;grid-template-columns:minmax(0,1fr);gap:2px;
padding:10px 0;border-top:1px solid var(--line)}.stacked tbody tr:first-child{border-top:0;
padding-top:0}.stacked th,.stacked td{padding:0;border:0}
.silos .exact{display:inline}
.stacked td+td::before{content:attr(data-label) ": ";color:var(--soft)}}
@media print{body{max-width:none}.state,.skip{display:none}}
"""

STYLE: Final = (
    f":root{{color-scheme:light dark;{_variables(LIGHT)}}}"
    f"@media (prefers-color-scheme:dark){{:root{{{_variables(DARK)}}}}}"
    + "".join(f"rect.{name}{{fill:var(--{name})}}.swatch.{name}{{background:var(--{name})}}"
              for name in _PHASES)
    + _RULES.replace("\n", "")
)  # fmt: skip
"""The style sheet, as it stands in the page."""
