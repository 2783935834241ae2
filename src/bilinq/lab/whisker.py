"""A small picture of one finding: the interval that was measured over the range that was claimed."""

import math

from bilinq.lab.claims import Finding

WIDTH, HEIGHT, EDGE = 120.0, 16.0, 6.0


def whisker(finding: Finding) -> str:
    """Return SVG: the claimed range shaded, the interval a line, the value a dot; empty without an interval."""
    effect, claimed = finding.effect, finding.claimed
    if not (math.isfinite(effect.low) and math.isfinite(effect.high)):
        return ""
    marks = [effect.low, effect.high, *(end for end in (claimed.low, claimed.high) if math.isfinite(end))]
    least, most = min(marks), max(marks)
    scale = (WIDTH - 2 * EDGE) / (most - least or 1.0)

    def place(value: float) -> float:
        return min(max(EDGE + (value - least) * scale, 0.0), WIDTH)

    left, right = place(claimed.low), place(claimed.high)
    low, high, middle = place(effect.low), place(effect.high), HEIGHT / 2
    return (
        f'<svg class="whisker" viewBox="0 0 {WIDTH:g} {HEIGHT:g}" aria-hidden="true">'
        f'<rect x="{left:.1f}" width="{right - left:.1f}" height="{HEIGHT:g}" rx="2"/>'
        f'<path d="M{low:.1f} {middle:g}H{high:.1f}"/>'
        f'<circle cx="{place(effect.value):.1f}" cy="{middle:g}" r="3"/></svg>'
    )
