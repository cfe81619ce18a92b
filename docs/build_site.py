"""Build the site from docs/ into ./site, offline: `make site`.

1. copy docs/ to build/docs. Links that leave docs/ lead to the repository if a GitHub workflow builds the site, and
   become the path of the file otherwise; CONTRIBUTING and CHANGELOG become pages, and so do the decisions of
   architecture.md; reproductions get a list;
2. make the reports to click through: of a small bench on built-in data, which is run, and of the suite, from its packed
   results (both kept in build/, seconds the next time);
3. run Zensical, whose warnings are errors;
4. turn equations, written in LaTeX between dollars, into MathML, which browsers draw without any script;
5. check the pages that were built: every relative link and anchor leads somewhere, and nothing is requested from
   elsewhere.
"""

from __future__ import annotations

import hashlib
import html
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import yaml

ROOT = Path(__file__).resolve().parents[1]
DOCS, SITE, BENCH = ROOT / "build" / "docs", ROOT / "site", ROOT / "build" / "example-bench"
SUITE, RESULTS = ROOT / "docs" / "suites" / "features.toml", ROOT / "build" / "suite-results"
PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}  # at the root, and in the site
LINK = re.compile(r"(?<!!)(\[(?:[^\]\[`]|`[^`]*`)*\])\(([^)\s]+)\)")
CODE = re.compile(r"^( *)```.*?^\1```", re.S | re.M)
DECISIONS = "\n## Decisions\n"
LISTED = "reproductions"  # a folder of pages that commands write: its index is made here, and the nav has only that
FOLDERS = (f"{LISTED}/", "ablations/")  # whose pages are reached from another one: the index, ablations.md
REPORT, SUITE_REPORT = "example-report/report.html", "suite-report/report.html"
# what a browser fetches by itself; everything else is a link that somebody clicks
FETCHED = {
    ("img", "src"),
    ("script", "src"),
    ("iframe", "src"),
    ("link", "href"),
    ("source", "src"),
    ("object", "data"),
}
EQUATION = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.S)
REQUEST = re.compile(r"""@import\s+["']https?:|url\(\s*["']?https?:""")


def main() -> None:
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    write_docs(repository_address(os.environ))
    problems = missing_pages(DOCS, config["nav"])
    if not problems:
        write_example(DOCS / REPORT)
        write_suite((DOCS / SUITE_REPORT).parent)
        shutil.rmtree(SITE, ignore_errors=True)
        command = [str(Path(sys.executable).with_name("zensical")), "build", "--clean", "--strict"]
        done = subprocess.run(command, cwd=ROOT, check=False)
        (SITE / "404.html").unlink(missing_ok=True)  # it knows only sites at the root of a server
        for page in SITE.rglob("*.html") if done.returncode == 0 else ():
            page.write_text(with_equations(page.read_text(encoding="utf-8")), encoding="utf-8")
        problems = check_site(SITE) if done.returncode == 0 else ["zensical found the problems above"]
    if problems:
        sys.exit("The site has problems:\n  " + "\n  ".join(problems))
    print(
        f"Site: {SITE / 'index.html'}, {len(list(SITE.rglob('*.html')))} pages; every link and anchor leads somewhere."
    )


# ---------------------------------------------------------------------------------------------------------------
# The copy of docs/


def repository_address(environment: Mapping[str, str]) -> str | None:
    """Where the files of this commit can be read, if a GitHub workflow builds the site."""
    names = ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY", "GITHUB_SHA")
    server, repository, commit = (environment.get(name) for name in names)
    return f"{server}/{repository}/blob/{commit}" if server and repository and commit else None


def write_docs(repository: str | None, root: Path = ROOT, out: Path = DOCS) -> None:
    """Copy docs/ and the pages at the root, links rewritten; the decisions of the architecture become a page."""
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(root / "docs", out, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    for page in out.rglob("*.md"):
        place = Path("docs") / page.relative_to(out)
        page.write_text(rewrite(page.read_text(encoding="utf-8"), place, repository, root), encoding="utf-8")
    for name, page_name in PAGES.items():
        text = (root / name).read_text(encoding="utf-8")
        (out / page_name).write_text(rewrite(text, Path(name), repository, root), encoding="utf-8")
    architecture = out / "architecture.md"
    text, found, decisions = architecture.read_text(encoding="utf-8").partition(DECISIONS)
    if not found:
        raise SystemExit(f"docs/architecture.md must have a section `{DECISIONS.strip()}`; it becomes a page.")
    architecture.write_text(f"{text}{DECISIONS}\nThey have [a page of their own](decisions.md).\n", encoding="utf-8")
    titled = re.sub(r"^\*\*(.+?)\.\*\* ", r"## \1\n\n", decisions, flags=re.M)
    (out / "decisions.md").write_text(f"# Decisions and their reasons\n{titled}", encoding="utf-8")
    pages = sorted((out / LISTED).glob("*.md"))
    titles = [page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ") for page in pages]
    lines = [f"- [{title}]({page.name})" for title, page in zip(titles, pages, strict=True)]
    head = "# Tables and figures of the papers, repeated\n\nWritten by `nearfield reproduce`.\n\n"
    (out / LISTED / "index.md").write_text(head + "\n".join(lines) + "\n", encoding="utf-8")


def rewrite(text: str, place: Path, repository: str | None, root: Path = ROOT) -> str:
    """The text of the page at `place`, relative to the root, with links as the site has them; code stays as it is.

    Without the address of a repository, a link to a file that the site does not have becomes the path of that file.
    """

    def changed(match: re.Match[str]) -> str:
        address, inside = _target(match[2], place, root)
        if inside or repository:
            return f"{match[1]}({address if inside else f'{repository}/{address}'})"
        label, path = match[1][1:-1], address.partition("#")[0]
        return label if path in label else f"{label} (`{path}`)"

    parts, end = [], 0
    for code in CODE.finditer(text):
        parts += [LINK.sub(changed, text[end : code.start()]), code[0]]
        end = code.end()
    return "".join([*parts, LINK.sub(changed, text[end:])])


def _target(link: str, place: Path, root: Path) -> tuple[str, bool]:
    """Where a link leads, and whether that is in the site or anywhere else that is not a file of the repository."""
    path, mark, anchor = link.partition("#")
    if not path or urlsplit(link).scheme:
        return link, True
    try:
        target = (root / place.parent / path).resolve().relative_to(root)
    except ValueError:
        return link, True  # outside of the project: the check of the site names it
    if str(target) in PAGES:
        inside = Path(PAGES[str(target)])
    elif target.parts[0] == "docs" and target.suffix != ".py":
        inside = Path(*target.parts[1:])
    else:
        return f"{target.as_posix()}{mark}{anchor}", False
    depth = len(place.parts) - 2 if place.parts[0] == "docs" else 0
    return f"{'../' * depth}{inside.as_posix()}{mark}{anchor}", True


def missing_pages(docs: Path, nav: object) -> list[str]:
    """Pages that the navigation lacks, or names although they are not there."""
    there, named = {page.relative_to(docs).as_posix() for page in docs.rglob("*.md")}, set(_leaves(nav))
    lacking = [
        f"docs/{name} is not in the nav of mkdocs.yml; add it."
        for name in sorted(there - named)
        if not name.startswith(FOLDERS)
    ]
    return lacking + [f"mkdocs.yml names {name}, which is not in docs/." for name in sorted(named - there)]


def _leaves(nav: object) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    elif isinstance(nav, dict):
        for value in nav.values():
            yield from _leaves(value)
    elif isinstance(nav, list):
        for value in nav:
            yield from _leaves(value)


def write_example(out: Path) -> None:
    """The report of a small bench, which is run here unless an earlier build has done so."""
    import numpy as np

    from nearfield.cli.main import main as nearfield
    from nearfield.data import load

    data = ROOT / "build" / "glyphs120.npz"  # as example.toml calls it: the whole would make a report of 7 MB
    if not data.is_file():
        glyphs = load("glyphs")
        rows = np.flatnonzero(glyphs.labels < 120)
        names = np.array(glyphs.class_names)[glyphs.labels[rows]]
        np.savez(data, images=glyphs.images[rows], labels=names)
    if nearfield(["bench", str(ROOT / "docs" / "benches" / "example.toml"), "--out", str(BENCH)]):
        raise SystemExit("the example bench failed; its output is above.")
    out.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(BENCH / "report.html", out)


def write_suite(out: Path) -> None:
    """The report of the suite and those of its datasets, from the packed results beside its configuration."""
    from nearfield.cli.main import main as nearfield

    packed = sorted(SUITE.with_suffix("").glob("*.zip"))
    made_from = RESULTS / "made-from.txt"
    names = "".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()} {file.name}\n" for file in [SUITE, *packed])
    if not made_from.is_file() or made_from.read_text(encoding="utf-8") != names:
        shutil.rmtree(RESULTS, ignore_errors=True)
        commands = [["results", "unpack", str(file), "--out", str(RESULTS / file.stem)] for file in packed]
        for command in [*commands, ["suite", str(SUITE), "--out", str(RESULTS), "--report"]]:
            if nearfield(command):
                raise SystemExit(f"nearfield {' '.join(command)} failed; its output is above.")
        made_from.write_text(names, encoding="utf-8")
    for page in RESULTS.rglob("*.html"):
        copy = out / page.relative_to(RESULTS)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(page, copy)


def with_equations(text: str) -> str:
    """A built page with its equations as MathML."""
    from latex2mathml.converter import convert

    def drawn(match: re.Match[str]) -> str:
        drawing = str(convert(html.unescape(match[3]).strip(), display="block" if match[2] == "[" else "inline"))
        if "\\" in drawing:
            raise SystemExit(f"an equation holds LaTeX that cannot be drawn: {match[3].strip()}")
        return drawing

    return EQUATION.sub(drawn, text)


# ---------------------------------------------------------------------------------------------------------------
# The check of the pages


class Page(HTMLParser):
    """The anchors of a page, its links, and what a browser fetches for it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if not value:
                continue
            if name == "id" or (tag == "a" and name == "name"):
                self.anchors.add(value)
            elif (tag, name) in FETCHED and not (tag == "link" and ("rel", "canonical") in attrs):
                self.fetched.append(value)
            elif (tag, name) == ("a", "href"):
                self.links.append(value)


def check_site(site: Path) -> list[str]:
    """What is wrong with the built pages: links and anchors that lead nowhere, requests to other servers."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    problems = []
    for path, page in pages.items():
        name = path.relative_to(site)
        problems += [f"{name}: fetches {link}" for link in page.fetched if urlsplit(link).netloc]
        problems += [
            f"{name}: {link} leads nowhere"
            for link in dict.fromkeys(page.links + page.fetched)
            if not _leads_somewhere(link, path, pages)
        ]
    for style in site.rglob("*.css"):
        if REQUEST.search(style.read_text(encoding="utf-8")):
            problems.append(f"{style.relative_to(site)}: fetches something from another server")
    return problems


def _leads_somewhere(link: str, path: Path, pages: dict[Path, Page]) -> bool:
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return True  # another server, which is not asked, or data:
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if target.is_dir():
        target /= "index.html"
    if target not in pages:
        return target.is_file()
    return not parts.fragment or unquote(parts.fragment) in pages[target].anchors


if __name__ == "__main__":
    main()
