"""The one thing that pyproject.toml cannot say: `[project.urls]`, the addresses of the repository that releases it.

A workflow's environment names them; a build elsewhere names none.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from setuptools import setup


def addresses(environment: Mapping[str, str]) -> dict[str, str]:
    """The project's addresses as package indices show them."""
    if "GITHUB_REPOSITORY" not in environment:
        return {}
    owner, name = environment["GITHUB_REPOSITORY"].split("/")
    page = f"{environment.get('GITHUB_SERVER_URL', 'https://github.com')}/{owner}/{name}"
    return {
        "Source": page,
        "Documentation": f"https://{owner.lower()}.github.io/{name}/",  # workflows/site.yml
        "Changelog": f"{page}/blob/main/CHANGELOG.md",
        "Issues": f"{page}/issues",
    }


if __name__ == "__main__":
    setup(project_urls=addresses(os.environ))
