"""What there is to cite says the same in CITATION.cff and the README."""

import re
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]


def test_the_citation_is_that_of_the_readme() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (citation["version"], citation["license"]) == (project["version"], project["license"])
    paper = citation["preferred-citation"]
    authors = " and ".join(f"{author['given-names']} {author['family-names']}" for author in paper["authors"])
    (bibtex,) = re.findall(r"```bibtex\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    plain = re.sub(r"\s+", " ", re.sub(r"\{(ANI)\}", r"\1", bibtex))
    assert f"author = {{{authors}}}" in plain and f"title = {{{paper['title']}}}" in plain
