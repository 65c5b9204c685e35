"""Ratios as bars, an SVG picture that stands alone."""

from __future__ import annotations

from xml.sax.saxutils import escape

WIDTH, LABEL, ROW = 720, 200, 30


def bars(ratios: dict[str, float], peers: dict[str, str]) -> str:
    """One bar per case; the line at 1 is the best peer, whose name stands beside the bar."""
    most = max([1.2, *ratios.values()]) * 1.05
    unit = (WIDTH - LABEL - 190) / most
    height = ROW * len(ratios) + 50
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif" '
        f'font-size="13"><rect width="100%" height="100%" fill="white"/>',
        '<text x="12" y="22" font-weight="bold">polyseq / best peer (1 = equal, longer is better)</text>',
    ]
    for i, (case, ratio) in enumerate(ratios.items()):
        y = 40 + ROW * i
        parts.append(f'<text x="{LABEL - 10}" y="{y + 15}" text-anchor="end">{escape(case)}</text>')
        fill = "#2b6cb0" if ratio >= 1 else "#c05621"
        parts.append(f'<rect x="{LABEL}" y="{y}" width="{ratio * unit:.1f}" height="20" fill="{fill}"/>')
        note = f"{ratio:.2f} x {peers[case]}"
        parts.append(f'<text x="{LABEL + ratio * unit + 6:.1f}" y="{y + 15}">{escape(note)}</text>')
    x = LABEL + unit
    parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="34" y2="{height - 10}" stroke="black" stroke-dasharray="4 3"/>')
    return "\n".join([*parts, "</svg>", ""])
