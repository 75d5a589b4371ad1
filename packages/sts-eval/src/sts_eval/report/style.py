"""The style sheet of the report: light and dark by the reader's preference, wide and narrow by the window."""

LIGHT = """
  --paper: #f7f7f4; --card: #ffffff; --ink: #1d1f24; --quiet: #646a75; --edge: #e2e2dc; --grid: #e9e9e4;
  --accent: #2a5bc4; --gain: #17805c; --loss: #c2353f; --chip: #eeeeea; --shade: rgba(20, 22, 26, .16); --open: #c4c6c9;
  --series-0: #c3c6cc; --series-1: #2a62c9; --series-2: #d8612a; --series-3: #16916b; --series-4: #a33ca6;
  --series-5: #ad8200; --series-6: #0d90b0; --series-7: #c4304b; --series-8: #6a58a0;
"""
DARK = """
  --paper: #14161a; --card: #1c1f25; --ink: #e7e8ea; --quiet: #9ba1ad; --edge: #30343c; --grid: #2b2f37;
  --accent: #86aeff; --gain: #55cf9e; --loss: #ff8189; --chip: #262a31; --shade: rgba(0, 0, 0, .55); --open: #4a4f59;
  --series-0: #4b515c; --series-1: #7ba9ff; --series-2: #ff9c63; --series-3: #4ed3a3; --series-4: #e38be5;
  --series-5: #e3bf4d; --series-6: #57cfea; --series-7: #ff7f94; --series-8: #b7a7ea;
"""

CHART = """
.chart { display: block; width: 100%; height: auto; font-family: inherit; }
.chart text { fill: var(--ink); font-size: 12.5px; font-variant-numeric: tabular-nums; }
.chart .tick { fill: var(--quiet); }
.chart .label { fill: var(--quiet); font-size: 12.5px; }
.chart .value { font-weight: 600; font-size: 12px; }
.chart .grid { stroke: var(--grid); stroke-width: 1; }
.chart .rule { stroke: var(--grid); stroke-width: 1; stroke-dasharray: 1 3; }
.chart .axis { stroke: var(--quiet); stroke-width: 1; opacity: .6; }
.chart .line { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
.chart .line:hover { stroke-width: 3.5; }
.chart .dot { stroke: var(--card); stroke-width: 1.5; }
.chart .bar { opacity: .82; }
.chart .bar.even { fill: var(--quiet); opacity: .5; }
.chart .bar.gain { fill: var(--gain); }
.chart .bar.loss { fill: var(--loss); }
.chart .bar:hover { opacity: 1; }
.chart .whisker { stroke: var(--ink); stroke-width: 1.3; }
.chart .open { fill: none; stroke: var(--open); stroke-dasharray: 3 3; }
.chart .cell-light, .chart .cell-dark { font-size: 14px; font-weight: 650; paint-order: stroke; stroke-width: 4px;
  stroke-linejoin: round; }
.chart .cell-light { fill: #ffffff; }
.chart .cell-dark { fill: #14161a; }
.chart .iso-back { fill: none; stroke: #ffffff; stroke-opacity: .55; stroke-width: 3.4; stroke-linejoin: round; }
.chart .iso { fill: none; stroke: #14161a; stroke-width: 1.2; stroke-dasharray: 6 3; stroke-linejoin: round; }
.chart .iso-label { fill: #14161a; font-size: 11px; font-weight: 600; paint-order: stroke; stroke: #ffffff;
  stroke-width: 4.5px; stroke-linejoin: round; }
""" + "".join(
    f".chart .line.s{i} {{ stroke: var(--series-{i}); }} .chart .dot.s{i}, .key.s{i} {{ fill: var(--series-{i}); "
    f"background: var(--series-{i}); }}\n"
    for i in range(9)
)

PAGE = """
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; scroll-behavior: smooth; scroll-padding-top: 3.5rem; }
body { margin: 0; background: var(--paper); color: var(--ink); line-height: 1.5; font-size: 15px;
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif; }
header, main, footer { max-width: 1180px; margin: 0 auto; padding: 0 clamp(.9rem, 3vw, 2rem); }
header { padding-top: clamp(1.4rem, 4vw, 2.8rem); }
.eyebrow { margin: 0; color: var(--accent); font-size: .8rem; font-weight: 650; letter-spacing: .07em;
  text-transform: uppercase; }
h1 { margin: .1rem 0 1.2rem; font-size: clamp(1.6rem, 4.5vw, 2.4rem); line-height: 1.15; letter-spacing: -.02em;
  overflow-wrap: anywhere; }
h2 { margin: 0 0 .9rem; font-size: 1.3rem; letter-spacing: -.01em; }
h3 { margin: 0 0 .35rem; font-size: .95rem; font-weight: 600; }
h3::first-letter { text-transform: uppercase; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 11rem), 1fr)); gap: .8rem; margin: 0; }
.facts > div { background: var(--card); border: 1px solid var(--edge); border-radius: 12px; padding: .8rem 1rem; }
.facts dt { color: var(--quiet); font-size: .82rem; }
.facts dt::first-letter { text-transform: uppercase; }
.facts dd { margin: 0; }
.facts .figure { font-size: 1.35rem; font-weight: 650; letter-spacing: -.01em; line-height: 1.25; margin-top: .1rem; }
.facts .detail { color: var(--quiet); font-size: .8rem; overflow-wrap: anywhere; line-height: 1.35; margin-top: .2rem; }
nav { position: sticky; top: 0; z-index: 3; margin-top: 1.3rem; background: var(--paper);
  border-bottom: 1px solid var(--edge); }
nav ul { display: flex; gap: .2rem; max-width: 1180px; margin: 0 auto; overflow-x: auto; list-style: none;
  padding: .4rem clamp(.9rem, 3vw, 2rem); scrollbar-width: none; }
nav a { display: block; padding: .25rem .7rem; border-radius: 99px; color: var(--quiet); text-decoration: none;
  white-space: nowrap; font-size: .88rem; }
nav a:hover, nav a:focus-visible { background: var(--chip); color: var(--ink); }
section { margin: 1.6rem 0; padding: clamp(1rem, 2.5vw, 1.6rem); background: var(--card); border: 1px solid var(--edge);
  border-radius: 14px; }
p { margin: 0; max-width: 75ch; }
figure { margin: 0; }
section > * + * { margin-top: 1.5rem; }
section > h2 + * { margin-top: 0; }
figcaption, .caption { font-weight: 600; margin-bottom: .6rem; overflow-wrap: anywhere; max-width: none; }
.note { color: var(--quiet); font-size: .85rem; margin-top: .6rem; }
.panels { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 330px), 1fr)); gap: 1.4rem 1.8rem; }
.panels > div { min-width: 0; }
.legend { display: flex; flex-wrap: wrap; gap: .25rem 1.1rem; margin: 0 0 .9rem; padding: 0; list-style: none;
  font-size: .87rem; }
.legend li { display: flex; align-items: center; gap: .45rem; overflow-wrap: anywhere; }
.key { flex: none; width: 1.1rem; height: .28rem; border-radius: 2px; }
.scroll, .panels > div { overflow-x: auto;  /* a shadow at the side where there is more to see */
  background: linear-gradient(to right, var(--card) 30%, transparent) 0 0 / 40px 100% no-repeat local,
    linear-gradient(to left, var(--card) 30%, transparent) 100% 0 / 40px 100% no-repeat local,
    linear-gradient(to right, var(--shade), transparent) 0 0 / 12px 100% no-repeat scroll,
    linear-gradient(to left, var(--shade), transparent) 100% 0 / 12px 100% no-repeat scroll; }
.scroll:focus-visible, summary:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px;
  border-radius: 6px; }
table { border-collapse: collapse; min-width: min(100%, 34rem); font-size: .88rem; font-variant-numeric: tabular-nums; }
th, td { padding: .42rem 1.4rem .42rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--edge); }
th:last-child, td:last-child { padding-right: 0; }
thead th { white-space: nowrap; color: var(--quiet); font-weight: 550; font-size: .8rem; vertical-align: bottom; }
tbody tr:last-child > * { border-bottom: 0; }
tbody tr:hover { background: color-mix(in srgb, var(--accent) 6%, transparent); }
tbody th { font-weight: 500; white-space: nowrap; }
thead tr:not(:last-child) th { border-bottom: 0; padding-bottom: 0; color: var(--ink); }
.remarks { margin: 0; padding: 0; list-style: none; color: var(--quiet); font-size: .85rem; max-width: 90ch; }
.remarks li + li { margin-top: .25rem; }
.remarks b { color: var(--ink); margin-right: .3rem; }
section > .remarks { margin-top: .7rem; }
.number { text-align: right; white-space: nowrap; }
td.short { white-space: nowrap; }
td.long { min-width: 17rem; max-width: 36rem; }
code { font: .92em ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  overflow-wrap: anywhere; }
th code, td.short code { white-space: nowrap; }
.gain { color: var(--gain); font-weight: 600; }
.loss { color: var(--loss); font-weight: 600; }
.none { color: var(--quiet); opacity: .7; }
details { margin-top: .7rem; }
summary { cursor: pointer; color: var(--accent); font-size: .87rem; width: fit-content; }
details[open] summary { margin-bottom: .6rem; }
footer { color: var(--quiet); font-size: .82rem; padding-bottom: 2.5rem; }
@media print { nav { display: none; } section { break-inside: avoid; border: 0; padding: 0; } }
"""

THEME = f":root {{ color-scheme: light dark; {LIGHT} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {DARK} }} }}\n"
STYLE = THEME + PAGE + CHART


def standalone(svg: str) -> str:
    """An SVG of this package with its colours inside, to be kept as a file of its own."""
    style = f"<style>{THEME.replace(':root', 'svg')}{CHART} svg {{ background: var(--card); }}</style>"
    head, mark, rest = svg.partition(">")
    return f"{head}{mark}{style}{rest}"
