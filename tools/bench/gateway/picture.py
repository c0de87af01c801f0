"""Draws the frontier, rate against p99, as plain SVG. Pure."""

from collections.abc import Mapping, Sequence
from math import log10
from typing import Any
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 900, 520
LEFT, RIGHT, TOP, BOTTOM = 80, 190, 60, 60
COLOURS = ("#b8515f", "#4878a8", "#5a9e5a", "#d98032", "#8868a8", "#8c7048")
_X_TICKS = (100, 200, 500, 1000, 2000, 5000, 10_000, 20_000)
_Y_TICKS = (20, 25, 30, 40, 50, 75, 100, 200, 500, 1000)


def draw(title: str, frontiers: Mapping[str, Sequence[Mapping[str, Any]]], limit_ms: float) -> str:
    """Return the picture: both axes logarithmic, steps above the limit hollow, one line per gateway."""
    points = {
        name: [(step["rate"], step["p99"] / 1000, bool(step["within"])) for step in steps if "p99" in step]
        for name, steps in frontiers.items()
    }
    rates = [rate for line in points.values() for rate, _, _ in line] or [100.0]
    times = [ms for line in points.values() for _, ms, _ in line] or [limit_ms]
    x = _scale(min(rates), max(rates), LEFT, WIDTH - RIGHT)
    y = _scale(min(18.0, *times), max(60.0, min(2000.0, max(times))), HEIGHT - BOTTOM, TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="28" font-size="15" font-weight="bold">{escape(title)}</text>',
        *_axes(x, y, min(rates), max(rates), max(60.0, min(2000.0, max(times)))),
        f'<line x1="{LEFT}" y1="{y(limit_ms):.1f}" x2="{WIDTH - RIGHT}" y2="{y(limit_ms):.1f}" '
        'stroke="#444444" stroke-dasharray="5 4"/>',
        f'<text x="{WIDTH - RIGHT - 4}" y="{y(limit_ms) - 5:.1f}" text-anchor="end" fill="#444444">'
        f"p99 limit {limit_ms:g} ms</text>",
    ]
    for number, (name, line) in enumerate(points.items()):
        parts += _line(name, line, COLOURS[number % len(COLOURS)], number, x, y)
    return "\n".join([*parts, "</svg>", ""])


def _scale(low: float, high: float, start: float, end: float) -> Any:
    span = (log10(high) - log10(low)) or 1.0
    return lambda value: start + (log10(min(max(value, low), high)) - log10(low)) / span * (end - start)


def _axes(x: Any, y: Any, lowest: float, highest: float, most: float) -> list[str]:
    parts = [
        f'<line x1="{x(rate):.1f}" y1="{TOP}" x2="{x(rate):.1f}" y2="{HEIGHT - BOTTOM}" stroke="#dddddd"/>'
        f'<text x="{x(rate):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{rate:,}</text>'
        for rate in _X_TICKS
        if lowest <= rate <= highest
    ]
    parts += [
        f'<line x1="{LEFT}" y1="{y(ms):.1f}" x2="{WIDTH - RIGHT}" y2="{y(ms):.1f}" stroke="#dddddd"/>'
        f'<text x="{LEFT - 8}" y="{y(ms) + 4:.1f}" text-anchor="end">{ms}</text>'
        for ms in _Y_TICKS
        if ms <= most
    ]
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(
        f'<text x="{middle}" y="{HEIGHT - 14}" text-anchor="middle">requests a second, one core</text>'
        f'<text x="20" y="{HEIGHT / 2}" text-anchor="middle" transform="rotate(-90 20 {HEIGHT / 2})">'
        "p99 in ms, an engine of 20 ms behind it</text>"
    )
    return parts


def _line(
    name: str, line: Sequence[tuple[float, float, bool]], colour: str, number: int, x: Any, y: Any
) -> list[str]:
    path = " ".join(f"{x(rate):.1f},{y(ms):.1f}" for rate, ms, _ in line)
    top = TOP + 20 * number + 10
    best = max((rate for rate, _, within in line if within), default=0)
    legend = f"{escape(name)}: {best:,.0f}/s" if line else f"{escape(name)}: missing"
    parts = [
        f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>',
        f'<rect x="{WIDTH - RIGHT + 14}" y="{top - 9}" width="10" height="10" fill="{colour}"/>',
        f'<text x="{WIDTH - RIGHT + 30}" y="{top}">{legend}</text>',
    ]
    parts += [
        f'<circle cx="{x(rate):.1f}" cy="{y(ms):.1f}" r="3.5" fill="{colour if within else "#ffffff"}" '
        f'stroke="{colour}"/>'
        for rate, ms, within in line
    ]
    return parts
