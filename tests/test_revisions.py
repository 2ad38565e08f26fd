"""Names on the hub with a revision: what is loaded, and what a run keeps of it."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from transformers import AutoConfig, AutoTokenizer

from ani import models, revisions
from ani.data.records import hub_records
from ani.errors import InputError
from ani.models import load_config, load_tokenizer
from ani.provenance import provenance
from ani.revisions import HubName, hub_name, pinned
from ani.training.recipe import Recipe

NEWEST, TAGGED = "a" * 40, "b" * 40


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str | None]]:
    """A hub whose repositories have a newest commit and a tag; what was asked of it."""
    asked: list[tuple[str, str | None]] = []

    def snapshot_download(name: str, *, repo_type: str, revision: str | None, allow_patterns: list[str]) -> str:
        asked.append((name, revision))
        if revision not in (None, "v1"):
            raise OSError(revision)
        return f"/cache/{repo_type}s/{name}/snapshots/{TAGGED if revision else NEWEST}"

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    monkeypatch.setattr(revisions, "COMMITS", {})
    monkeypatch.setattr("ani.provenance.COMMITS", revisions.COMMITS)
    revisions._commit.cache_clear()
    return asked


def test_a_name_and_its_revision() -> None:
    named = {"Qwen/Qwen3-8B": None, "Qwen/Qwen3-8B@v1.0": "v1.0", "a/b@refs/pr/7": "refs/pr/7"}
    for name, revision in named.items():
        assert hub_name(name) == HubName(name.partition("@")[0], revision)
    for name in ("data/rows.jsonl@x", "smollm2", "/models/Qwen@8B"):
        assert hub_name(name) == HubName(name, None)


def test_a_name_is_pinned_to_its_commit(hub: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "me" / "model@v1").mkdir(parents=True)
    with pytest.warns(UserWarning, match=f"a/b has no revision.*a/b@{NEWEST}"):
        assert pinned("a/b") == f"a/b@{NEWEST}"
    assert pinned("a/b") == f"a/b@{NEWEST}"  # and warns once
    assert pinned("a/tagged@v1", "dataset") == f"a/tagged@{TAGGED}" == pinned(f"a/tagged@{TAGGED}", "dataset")
    for name in ("me/model@v1", "a/b@gone", "smollm2", str(tmp_path), "rows/mine.jsonl"):
        assert pinned(name) == name
    assert hub == [("a/b", None), ("a/tagged", "v1"), ("a/b", "gone")]
    assert provenance()["revisions"] == {"a/b": NEWEST, "a/tagged": TAGGED}


def test_a_recipe_is_pinned(hub: Any) -> None:
    recipe = Recipe(
        model="a/model@v1",
        output="x",
        ani={"layer": 1},
        data=[{"kind": "hub", "name": "a/rows@v1"}, {"kind": "gsm8k", "path": "mine.jsonl"}, {"kind": "labelled"}],
    ).pinned()
    assert recipe.model == f"a/model@{TAGGED}"
    assert [source.model_dump().get("name", source.model_dump().get("path")) for source in recipe.data] == [
        f"a/rows@{TAGGED}",
        "mine.jsonl",
        None,
    ]
    assert Recipe.model_validate(recipe.model_dump(mode="json")).pinned() == recipe  # as a resumed run reads it


def test_loaders_read_the_revision(hub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[tuple[str, Any]] = []

    def record(name: str, *_: Any, **options: Any) -> Any:
        read.append((name, options.get("revision")))
        return SimpleNamespace(pad_token_id=0, pad_token=None)

    for kind in (AutoConfig, AutoTokenizer):
        monkeypatch.setattr(kind, "from_pretrained", record)
    monkeypatch.setattr(models, "snapshot_download", lambda name, **options: read.append((name, options["revision"])))
    monkeypatch.setattr(
        models.PreTrainedConfig,
        "get_config_dict",
        lambda name, **options: (read.append((name, options["revision"])), 1),
    )
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=lambda *a, **k: [record(*a, **k)]))
    load_config("a/b@v1")
    load_tokenizer("a/b@v1")
    with pytest.raises(InputError):
        models.load_model("a/b@v1", device="cpu")  # there are no files
    hub_records("a/b@v1", "train", None, "a file")
    assert read == [("a/b", "v1")] * 4 + [("a/b", TAGGED)]


def test_a_revision_that_is_missing_is_named() -> None:
    with pytest.raises(InputError, match="a/b@gone"):
        load_config("a/b@gone")
