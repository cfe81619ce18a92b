"""Every tutorial, executed: each block of a page in order, in an empty folder; and the runner itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs"))

from run_tutorials import SLOW, blocks, differences, filled, run_page, words  # noqa: E402

pytestmark = pytest.mark.programs

PAGES = sorted(page for page in (ROOT / "docs" / "tutorials").glob("*.md") if page.name != "index.md")
EXAMPLE = """# A page

```python
n = 20
print("n is", n + 1)
```

```python title="own.py"
print("from a file")
```

```sh
python own.py
```

```text title="Output"
something old
```

<!-- needs: no_such_package -->
```python
import no_such_package
```

The end.
"""


def marked(page: Path) -> object:
    slow = page.read_text(encoding="utf-8").startswith(SLOW)
    return pytest.param(page, id=page.stem, marks=[pytest.mark.slow] if slow else [])


@pytest.mark.parametrize("page", [marked(page) for page in PAGES])
def test_the_tutorial_runs_and_prints_what_its_page_says(page: Path) -> None:
    command = [sys.executable, str(ROOT / "docs" / "run_tutorials.py"), "--check", str(page)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
    if "left out" in done.stdout:
        pytest.skip(done.stdout.strip())


def test_every_tutorial_is_listed() -> None:
    index = (ROOT / "docs" / "tutorials" / "index.md").read_text(encoding="utf-8")
    assert PAGES
    assert [page.name for page in PAGES if f"]({page.name})" not in index] == []


def test_outputs_are_written_after_their_blocks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(EXAMPLE, encoding="utf-8")
    found = run_page(page)
    assert [printed for _, printed in found] == ["n is 21\n", "", "from a file\n", None]
    assert len(differences(found)) == 2  # one has no output on the page, one another
    page.write_text(filled(EXAMPLE, [printed for _, printed in found]), encoding="utf-8")
    text = page.read_text(encoding="utf-8")
    assert 'n + 1)\n```\n\n```text title="Output"\nn is 21\n```\n' in text
    assert "something old" not in text
    assert text.endswith("The end.\n")
    assert differences(run_page(page)) == []
    assert filled(text, [printed for _, printed in run_page(page)]) == text


def test_a_check_ignores_numbers_but_not_words() -> None:
    assert words("recall@1 57.70 % in 3 s") == words("recall@1  1,057.7e-3 % in 12 s")
    assert words("a is better than b") != words("a is not better than b")
    assert [block.line for _, block in blocks(EXAMPLE)] == [4, 9, 13, 22]


def test_a_block_that_fails_names_its_line(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```sh\necho before\n```\n\n```sh\nexit 3\n```\n", encoding="utf-8")
    with pytest.raises(RuntimeError, match=r"page.md, line 6: exit code 3"):
        run_page(page)
