"""Follows every link inside the built site: `python -m tools.site_links build/site`.

Exits with 1 if one leads nowhere, if a page loads something from the network (the site is read offline, too), or if an
image has no words that stand for it.
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """What a page refers to, what of it a browser loads, and the places in it that others can refer to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.targets: set[str] = set()
        self.loaded: set[str] = set()
        self.wordless: set[str] = set()
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Called for every element."""
        given = dict(attrs)
        if tag == "img" and given.get("alt") in (None, "", given.get("src")):
            self.wordless.add(given.get("src") or "")
        for name, value in attrs:
            if value and name in ("href", "src"):
                self.targets.add(value)
                if name == "src" or tag == "link":
                    self.loaded.add(value)
            elif value and name in ("id", "name"):
                self.places.add(value)


def read_pages(site: Path) -> dict[Path, Page]:
    """The pages of a site by their files."""
    files = [file for file in site.rglob("*.html") if "_static" not in file.parts]  # templates of the theme
    return {file.resolve(): Page(file.read_text("utf-8")) for file in files}


def from_network(site: Path) -> list[str]:
    """Every script, style, font or image a page loads from elsewhere, as MathJax for a formula."""
    return [
        f"{file.relative_to(site.resolve())}: {target} is loaded from the network"
        for file, page in read_pages(site).items()
        for target in sorted(page.loaded)
        if urlsplit(target).netloc
    ]


def without_words(site: Path) -> list[str]:
    """Every image without an `alt` text; for those that cells draw, Sphinx writes the file's name there."""
    return [
        f"{file.relative_to(site.resolve())}: {image} has no alt text"
        for file, page in read_pages(site).items()
        for image in sorted(page.wordless)
    ]


def dead_links(site: Path) -> list[str]:
    """Every link to a file or a place that is not there, with the page that has it."""
    pages = read_pages(site)
    found = []
    for file, page in pages.items():
        for target in sorted(page.targets):
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            wanted = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            place = unquote(parts.fragment)
            known = pages[wanted].places if wanted in pages else set()
            if not wanted.exists() or (place and wanted in pages and place not in known):
                found.append(f"{file.relative_to(site.resolve())}: {target}")
    return found


def main() -> None:
    """Prints them."""
    site = Path(sys.argv[1])
    if not (site / "index.html").is_file():
        sys.exit(f"{site}: no site; build it first: python -m sphinx -W docs {site}")
    found = dead_links(site) + from_network(site) + without_words(site)
    print(
        "\n".join(found) or "every link inside the site leads somewhere, and nothing is loaded from elsewhere"
    )
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
