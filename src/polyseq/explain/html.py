"""A plan as one page that needs nothing else: the picture, the ubatches, every row's way. No scripts.

Enters: a title, a scene, facts and listings. Leaves: HTML text.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from polyseq.explain.scene import Scene
from polyseq.explain.svg import svg
from polyseq.explain.tables import Listing

_STYLE = """
body { font: 15px/1.5 "DejaVu Sans", Arial, sans-serif; color: #000; background: #fff; margin: 24px auto;
       max-width: 1240px; padding: 0 20px; }
svg { max-width: 100%; height: auto; }
h1 { font-size: 22px; } h2 { font-size: 17px; margin-top: 32px; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: 3px 14px 3px 0; text-align: left; border-bottom: 1px solid #ddd; }
th { color: #555; font-weight: normal; } .n { text-align: right; }
"""


def page(title: str, facts: Sequence[str], scene: Scene, listings: Sequence[tuple[str, Listing]]) -> str:
    """Pure. `facts` are sentences under the title, `listings` tables with their headings."""
    said = "".join(f"<p>{escape(fact)}</p>\n" for fact in facts)
    tables = "".join(f"<h2>{escape(head)}</h2>\n{_table(listing)}\n" for head, listing in listings)
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head><meta charset="utf-8"><title>{escape(title)}</title>\n'
        f"<style>{_STYLE}</style></head>\n<body>\n<h1>{escape(title)}</h1>\n{said}{svg(scene)}\n{tables}</body>\n</html>\n"
    )


def _table(listing: Listing) -> str:
    head = "".join(_cell("th", i, word, listing) for i, word in enumerate(listing.heads))
    body = "\n".join(
        "<tr>" + "".join(_cell("td", i, word, listing) for i, word in enumerate(row)) + "</tr>" for row in listing.rows
    )
    return f"<table>\n<tr>{head}</tr>\n{body}\n</table>"


def _cell(tag: str, i: int, word: str, listing: Listing) -> str:
    kind = ' class="n"' if i in listing.right else ""
    return f"<{tag}{kind}>{escape(word)}</{tag}>"
