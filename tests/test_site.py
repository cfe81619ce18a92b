"""The site: what docs/build_site.py makes of docs/, and what its check of the built pages finds."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs"))

from build_site import (  # noqa: E402
    REPORT,
    SUITE_REPORT,
    check_site,
    missing_pages,
    repository_address,
    rewrite,
    with_equations,
    write_docs,
)

AT = "https://example.org/blob/main"


@pytest.fixture(scope="module")
def docs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site") / "docs"
    write_docs(AT, ROOT, out)
    return out


@pytest.mark.parametrize(
    ("place", "link", "expected"),
    [
        ("docs/a.md", "../src/nearfield/config.py", f"{AT}/src/nearfield/config.py"),
        ("docs/tutorials/a.md", "../../src/nearfield/config.py#L3", f"{AT}/src/nearfield/config.py#L3"),
        ("docs/a.md", "generate.py", f"{AT}/docs/generate.py"),
        ("docs/a.md", "speed.md#losses", "speed.md#losses"),
        ("docs/tutorials/a.md", "../speed.md", "../speed.md"),
        ("docs/tutorials/a.md", "b.md", "../tutorials/b.md"),
        ("docs/a.md", "../CONTRIBUTING.md#rooms", "contributing.md#rooms"),
        ("docs/tutorials/a.md", "../../CHANGELOG.md", "../changelog.md"),
        ("CONTRIBUTING.md", "docs/architecture.md", "architecture.md"),
        ("CONTRIBUTING.md", "LICENSE", f"{AT}/LICENSE"),
        ("docs/a.md", "#here", "#here"),
        ("docs/a.md", "https://example.org", "https://example.org"),
    ],
)
def test_links_lead_to_pages_or_to_the_repository(place: str, link: str, expected: str) -> None:
    assert rewrite(f"see [`it`]({link}), there", Path(place), AT) == f"see [`it`]({expected}), there"


def test_without_a_repository_links_to_its_files_are_paths() -> None:
    text = "[a](speed.md), [b](../src/nearfield/config.py#L3), [`src/nearfield/config.py`](../src/nearfield/config.py)"
    expected = "[a](speed.md), b (`src/nearfield/config.py`), `src/nearfield/config.py`"
    assert rewrite(text, Path("docs/a.md"), None) == expected


def test_a_workflow_knows_the_address_of_its_repository() -> None:
    there = {"GITHUB_SERVER_URL": "https://example.org", "GITHUB_REPOSITORY": "a/b", "GITHUB_SHA": "c0ffee"}
    assert repository_address(there) == "https://example.org/a/b/blob/c0ffee"
    assert repository_address({"GITHUB_SHA": "c0ffee"}) is None


def test_code_is_left_as_it_is() -> None:
    text = "[a](../LICENSE)\n\n```md\n[a](../LICENSE)\n```\n\n[a](../LICENSE)\n"
    assert rewrite(text, Path("docs/a.md"), AT).count(f"{AT}/LICENSE") == 2


def test_the_navigation_names_every_page(docs: Path) -> None:
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    assert missing_pages(docs, nav) == []
    assert missing_pages(docs, nav[1:]) == ["docs/index.md is not in the nav of mkdocs.yml; add it."]
    assert missing_pages(docs, [*nav, {"x": "gone.md"}]) == ["mkdocs.yml names gone.md, which is not in docs/."]


def test_reproductions_are_listed(docs: Path) -> None:
    pages = {page.name for page in (ROOT / "docs" / "reproductions").glob("*.md")}
    index = (docs / "reproductions" / "index.md").read_text(encoding="utf-8")
    assert pages
    assert [name for name in pages if f"]({name})" not in index] == []


def test_every_ablation_is_reached_from_the_page_about_them(docs: Path) -> None:
    text = (docs / "ablations.md").read_text(encoding="utf-8")
    pages = sorted((docs / "ablations").glob("*.md"))
    assert pages
    assert [page.name for page in pages if f"](ablations/{page.name})" not in text] == []


def test_decisions_are_a_page(docs: Path) -> None:
    text = (docs / "decisions.md").read_text(encoding="utf-8")
    assert text.count("\n## ") >= 10
    assert "**Weights are data.**" not in (docs / "architecture.md").read_text(encoding="utf-8")
    assert "## Weights are data\n\nThey" in text


@pytest.mark.parametrize(("page", "report"), [("example-report.md", REPORT), ("suite-report.md", SUITE_REPORT)])
def test_a_report_is_where_its_page_says(page: str, report: str) -> None:
    assert f'src="{report}"' in (ROOT / "docs" / page).read_text(encoding="utf-8")


def test_the_check_finds_what_leads_nowhere_and_what_is_fetched(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b.html").write_text('<h2 id="here">b</h2><a href="../a.html">a</a>', encoding="utf-8")
    (tmp_path / "a.html").write_text(
        '<a href="sub/b.html#here">1</a><a href="sub/b.html#gone">2</a><a href="c.html">3</a><a href="#top">4</a>'
        '<a href="https://example.org">5</a><img src="x.png"><img src="data:image/png;base64,AA">'
        '<script src="https://example.org/a.js"></script><link rel="canonical" href="https://example.org">',
        encoding="utf-8",
    )
    (tmp_path / "a.css").write_text("@font-face { src: url(https://example.org/f.woff) }", encoding="utf-8")
    assert check_site(tmp_path) == [
        "a.html: fetches https://example.org/a.js",
        "a.html: sub/b.html#gone leads nowhere",
        "a.html: c.html leads nowhere",
        "a.html: #top leads nowhere",
        "a.html: x.png leads nowhere",
        "a.css: fetches something from another server",
    ]


def test_aligned_docstrings_stay_as_typed() -> None:
    pytest.importorskip("griffe", reason="needs nearfield[site]")
    from docstrings import as_markdown

    text = "A value.\n\n    L = 1/M sum_i l_i\n\na   the first\nbb  the second\n\nThe end."
    fenced = "```text\n    L = 1/M sum_i l_i\n\na   the first\nbb  the second\n```"
    assert as_markdown(text) == f"A value.\n\n{fenced}\n\nThe end."
    assert as_markdown("One line.") == "One line."


def test_equations_become_mathml() -> None:
    inline, block = "\\(a &lt; b\\)", "\\[\nW = \\frac{x}{y}\n\\]"
    page = f'<p>so <span class="arithmatex">{inline}</span></p><div class="arithmatex">{block}</div>'
    found = with_equations(page)
    assert found.count("<math") == 2
    assert 'display="block"' in found
    assert "<mfrac>" in found
    assert "<mi>a</mi><mo>&#x0003C;</mo><mi>b</mi>" in found
    assert "arithmatex" not in found
    assert with_equations("<p>It costs $5 and \\(this\\) is text.</p>") == "<p>It costs $5 and \\(this\\) is text.</p>"
