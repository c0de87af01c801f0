"""Draws when each pipeline stage worked, as plain SVG. Pure."""

from collections.abc import Sequence
from xml.sax.saxutils import escape

from tools.bench.engine.timeline import Stages

WIDTH = 1000
LEFT = 80
TOP = 56
ROW = 44
BAR = 30
COLOURS = ("#4878a8", "#d98032", "#5a9e5a", "#b8515f", "#8868a8", "#8c7048")


def draw(title: str, notes: Sequence[str], stages: Stages, begin: float, seconds: float) -> str:
    """Return the picture of a span of `seconds` from `begin`.

    A bar is one forward pass, its number the tokens of the step. The passes of one step have one colour in
    all stages: they are numbered from the first that lies in the span on stage 0, and no step overtakes.
    """
    height = TOP + ROW * len(stages) + 40 + 16 * len(notes)
    scale = (WIDTH - LEFT - 20) / seconds
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="24" font-size="15" font-weight="bold">{escape(title)}</text>',
    ]
    offsets = _first_steps(stages, begin)
    for number, passes in enumerate(stages):
        top = TOP + ROW * number
        parts.append(f'<text x="12" y="{top + BAR / 2 + 4}">stage {number}</text>')
        parts.append(
            f'<rect x="{LEFT}" y="{top}" width="{WIDTH - LEFT - 20}" height="{BAR}" fill="#f0f0f0"/>'
        )
        for index, item in enumerate(passes):
            start, end = max(item.begin, begin), min(item.end, begin + seconds)
            if start >= end:
                continue
            x, width = LEFT + (start - begin) * scale, (end - start) * scale
            colour = COLOURS[(index - offsets[number]) % len(COLOURS)]
            parts.append(
                f'<rect x="{x:.1f}" y="{top}" width="{max(width, 1):.1f}" height="{BAR}" fill="{colour}" '
                'stroke="#ffffff" stroke-width="0.7"/>'
            )
            if width > 18:
                parts.append(
                    f'<text x="{x + width / 2:.1f}" y="{top + BAR / 2 + 4}" fill="#ffffff" '
                    f'text-anchor="middle">{item.tokens}</text>'
                )
    parts += _axis(TOP + ROW * len(stages), seconds, scale)
    bottom = TOP + ROW * len(stages) + 40
    parts += [f'<text x="{LEFT}" y="{bottom + 16 * n}">{escape(note)}</text>' for n, note in enumerate(notes)]
    return "\n".join([*parts, "</svg>", ""])


def _first_steps(stages: Stages, begin: float) -> list[int]:
    """Return for each stage the index of the step that is the first one in the span on stage 0."""
    first = next((n for n, p in enumerate(stages[0]) if p.end > begin), 0) if stages else 0
    return [first for _ in stages]


def _axis(y: float, seconds: float, scale: float) -> list[str]:
    step = next(s for s in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 60.0) if seconds / s <= 10)
    marks = []
    for number in range(int(seconds / step) + 1):
        x = LEFT + number * step * scale
        marks.append(f'<line x1="{x:.1f}" y1="{TOP - 6}" x2="{x:.1f}" y2="{y}" stroke="#cccccc"/>')
        marks.append(
            f'<text x="{x:.1f}" y="{y + 12}" text-anchor="middle" fill="#555555">'
            f"{1000 * number * step:.0f} ms</text>"
        )
    return marks
