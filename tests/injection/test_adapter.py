"""Adapter directories: a bad one raises an InputError and leaves the model unchanged; none is half-written."""

import copy
import json
import math
import shutil
import struct
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import HfApi, ModelCard, RepoUrl
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from torch import distributed
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from typer.testing import CliRunner

import ani.hub as hub_module
from ani import AniConfig, attach, detach, load_adapter, save_adapter
from ani.cli import app
from ani.injection import adapter as adapter_module
from ani.injection import adapter_files
from ani.injection.adapter import Adapter
from ani.injection.adapter_files import CONFIG_FILE, FILES, PEFT_CONFIG_FILE, PEFT_WEIGHTS_FILE, WEIGHTS_FILE
from ani.injection.model_parts import ani_module, is_attached
from ani.models import embedded_model_directory, lasting_name
from tests.refusals import refused
from tests.tiny import attached, encode, logits_of, pair, randomise, tiny

FAMILY = "gemma"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter with LoRA weights; copied before it is damaged."""
    path = tmp_path_factory.mktemp("saved") / "adapter"
    model, tokenizer = pair(FAMILY)
    lora = LoraConfig(target_modules=["q_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
    trained = get_peft_model(model, lora)
    attach(trained, tokenizer, AniConfig(layer=2, gate_hidden_size=8))
    randomise(trained, tokenizer)
    save_adapter(trained, path)
    return path


@pytest.fixture
def damaged(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "damaged"))


def edit_config(file: Path, **changes: Any) -> None:
    """Change keys of the config, and of its module; KeyError removes one."""
    config = json.loads(file.read_text())
    if isinstance(module := changes.get("module"), dict):
        changes["module"] = {k: v for k, v in {**config["module"], **module}.items() if v is not KeyError}
    file.write_text(json.dumps({key: value for key, value in {**config, **changes}.items() if value is not KeyError}))


def contents(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def mixed_logits(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> torch.Tensor:
    return logits_of(model, encode(tokenizer))


def assert_refused(path: Path, *words: str, model: PreTrainedModel | None = None) -> None:
    """`load_adapter` raises an InputError with the words, and the model is as it was."""
    tokenizer = pair(FAMILY)[1]
    model = pair(FAMILY)[0] if model is None else model
    before = mixed_logits(model, tokenizer)
    modules = [(name, type(module)) for name, module in model.named_modules()]
    attributes = set(vars(model))
    refused(lambda: load_adapter(model, tokenizer, path), *words)
    assert not is_attached(model)
    assert [(name, type(module)) for name, module in model.named_modules()] == modules
    assert set(vars(model)) == attributes
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert torch.equal(mixed_logits(model, tokenizer), before)


# --- bad adapters -----------------------------------------------------------------------------------------------------

Damage = Callable[[Path], object]


def missing(name: str) -> Damage:
    return lambda folder: (folder / name).unlink()


def pickled(name: str) -> Damage:
    return lambda folder: (folder / name).rename((folder / name).with_suffix(".bin"))


def linked(name: str) -> Damage:
    """A link out of the adapter."""
    return lambda folder: (folder / name).symlink_to((folder / name).rename(folder.parent / "secret"))


def text(text: str) -> Damage:
    return lambda folder: (folder / CONFIG_FILE).write_text(text)


def config(**changes: Any) -> Damage:
    return lambda folder: edit_config(folder / CONFIG_FILE, **changes)


def lora(**changes: Any) -> Damage:
    return lambda folder: edit_config(folder / PEFT_CONFIG_FILE, **changes)


def lying(name: str, lie: Callable[[bytes], bytes]) -> Damage:
    return lambda folder: (folder / name).write_bytes(lie((folder / name).read_bytes()))


def with_header(change: Callable[[dict[str, Any]], Any]) -> Callable[[bytes], bytes]:
    """A change of the header of safetensors."""

    def changed(data: bytes) -> bytes:
        size = struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8 : 8 + size])
        change(header)
        written = json.dumps(header).encode()
        return struct.pack("<Q", len(written)) + written + data[8 + size :]

    return changed


def other_names(name: str, extra: bool) -> Damage:
    """Add a weight to a file, or remove one, which PEFT would draw at random."""

    def damage(folder: Path) -> None:
        weights = load_file(folder / name)
        save_file({**weights, "x": torch.zeros(2)} if extra else dict([*weights.items()][1:]), folder / name)

    return damage


LIES: list[Callable[[bytes], bytes]] = [
    lambda data: struct.pack("<Q", 2**63) + data[8:],
    lambda data: data[:-4] + struct.pack("<f", math.nan),
    with_header(lambda header: next(iter(header.values())).update(shape=[2**40])),
    with_header(lambda header: list(header.values())[-1].update(dtype="I32")),
    with_header(lambda header: list(header.values())[-1].update(data_offsets=[0, 2**50])),
    lambda data: b"\x80\x04\x95",
    lambda data: data[:-20],
]
BOTH = (WEIGHTS_FILE, PEFT_WEIGHTS_FILE)
BAD: list[tuple[Damage, str]] = [
    *((missing(name), name) for name in (CONFIG_FILE, *BOTH)),
    *((pickled(name), f"{name}…safetensors only") for name in BOTH),
    *((linked(name), f"{name}…link") for name in FILES),
    *((other_names(name, extra), name) for name in BOTH for extra in (True, False)),
    *((lying(name, lie), name) for name in BOTH for lie in LIES),
    *((text(each), CONFIG_FILE) for each in ("", "[]", "{}", "[" * 100_000, '{"lora": ' + "9" * 5000 + "}")),
    (config(format_version=99), "format_version…99"),
    (config(from_the_future=1), "from_the_future"),
    (config(method=KeyError), "method"),
    (config(method="sft"), "'sft'…module"),
    (config(base=["llama"]), "base"),
    (config(module=None), "'ani'…module"),
    (config(module={"layer": -1}), "layer"),
    (config(module={"layer": KeyError}), "layer"),
    (config(module={"layer": 4}), "layer=4"),
    (config(module={"embedding_scale": None}), "embedding_scale"),
    (config(module={"gate_hidden_size": 9}), WEIGHTS_FILE),
    (config(module={"gate_norm": False}), WEIGHTS_FILE),
    (config(module={"gate_hidden_size": 10**9}), "gate_hidden_size"),
    (config(module={"hidden_size": 2**20}), WEIGHTS_FILE),
    (config(module={"penalty": math.inf}), "penalty"),
    (config(module={"model_type": "x" * 5000}), "model_type"),
    (lora(peft_type="PROMPT_TUNING", tokenizer_kwargs={"trust_remote_code": True}), "peft_type"),
    (lora(megatron_config={"a": 1}, megatron_core="os"), "megatron_config"),
    (lora(target_modules="(q_proj"), PEFT_CONFIG_FILE),
    (lora(target_modules=["q_proj", "k_proj"]), PEFT_WEIGHTS_FILE),
    (lora(target_modules=["no_such_projection"]), PEFT_CONFIG_FILE),
    (lora(r=3), PEFT_WEIGHTS_FILE),
    (lora(lora_alpha=math.nan), "lora_alpha"),
    (lora(modules_to_save=["lm_head"]), "modules_to_save"),
    (lora(use_dora=True), "use_dora"),
    (lora(layers_pattern="layers"), "layers_to_transform"),
]


@pytest.mark.parametrize(("damage", "words"), BAD, ids=range(len(BAD)))
def test_a_bad_adapter_leaves_the_model_as_it_was(damaged: Path, damage: Damage, words: str) -> None:
    damage(damaged)
    assert_refused(damaged, words)


@pytest.mark.parametrize(
    ("family", "overrides", "words"),
    [
        (FAMILY, {"hidden_size": 64}, ["hidden_size", "32", "64"]),
        (FAMILY, {"num_hidden_layers": 2}, ["num_hidden_layers", "4", "2"]),
        ("llama", {}, ["model_type", "gemma3_text", "llama"]),
    ],
)
def test_another_model(saved: Path, family: str, overrides: dict[str, Any], words: list[str]) -> None:
    assert_refused(saved, *words, model=tiny(family, tokenizer=pair(FAMILY)[1], **overrides))


def test_links_of_the_hub_s_cache(damaged: Path, tmp_path: Path) -> None:
    snapshot = tmp_path / "cache" / "snapshots" / "1"
    snapshot.mkdir(parents=True)
    damaged.rename(tmp_path / "cache" / "blobs")
    for name in FILES:
        (snapshot / name).symlink_to(f"../../blobs/{name}")
    assert is_attached(load_adapter(*pair(FAMILY), snapshot))


# --- detaching --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lora_alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter of a method without a module."""
    path = tmp_path_factory.mktemp("saved") / "lora"
    lora = LoraConfig(target_modules=["q_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
    save_adapter(get_peft_model(pair(FAMILY)[0], lora), path, method="sft")
    return path


@pytest.mark.parametrize("name", ["saved", "lora_alone"])
def test_detach_takes_off_the_lora_of_load_adapter(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    path = request.getfixturevalue(name)
    model, tokenizer = pair(FAMILY)
    modules = {name: type(module) for name, module in model.named_modules()}
    attributes, before = set(vars(model)), mixed_logits(model, tokenizer)
    load_adapter(model, tokenizer, path)
    after = mixed_logits(model, tokenizer)
    assert not torch.equal(after, before)
    refused(lambda: load_adapter(model, tokenizer, path), "attached" if name == "saved" else "PEFT")
    twin = copy.deepcopy(model)
    for _ in range(2):
        assert detach(twin) is twin
        assert torch.equal(mixed_logits(twin, tokenizer), before)
        assert {name: type(module) for name, module in twin.named_modules()} == modules
        assert set(vars(twin)) == attributes
        assert all(parameter.requires_grad for parameter in twin.parameters())
        load_adapter(twin, tokenizer, path)
        assert torch.equal(mixed_logits(twin, tokenizer), after)
    assert torch.equal(mixed_logits(model, tokenizer), after)
    detach(model).save_pretrained(tmp_path / "base")
    again = type(model).from_pretrained(tmp_path / "base").eval()
    assert torch.equal(mixed_logits(again, tokenizer), before)
    refused(lambda: detach(model), "detach")


# --- saving -----------------------------------------------------------------------------------------------------------


def test_saving_over_something_else(tmp_path: Path) -> None:
    model, _ = attached(FAMILY)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.tex").write_text("years of work")
    (tmp_path / "file").write_text("x")
    before = contents(tmp_path)
    refused(lambda: save_adapter(model, tmp_path / "thesis"), "thesis")
    refused(lambda: save_adapter(model, tmp_path / "file"), "file")
    refused(lambda: save_adapter(pair(FAMILY)[0], tmp_path / "adapter"), "ani.attach")
    for key, value in {"use_dora": True, "bias": "lora_only", "modules_to_save": ["lm_head"]}.items():
        lora: Any = {"target_modules": ["q_proj"], "task_type": "CAUSAL_LM", key: value}
        trained = get_peft_model(pair(FAMILY)[0], LoraConfig(**lora))
        refused(lambda trained=trained: save_adapter(trained, tmp_path / "x", method="sft"), "'default'", key)
    assert contents(tmp_path) == before
    (tmp_path / "empty").mkdir()
    save_adapter(model, tmp_path / "empty", card="our card")
    assert (tmp_path / "empty" / "README.md").read_text() == "our card"


def test_settings_of_lora(tmp_path: Path) -> None:
    patterns = {"rank_pattern": {r"1\..*_proj": 2}, "alpha_pattern": {r"q_.*": 3}, "exclude_modules": r".*\.0\..*"}
    layers = {"layers_to_transform": [1, 2], "layers_pattern": "layers", "use_rslora": True}
    for place, settings in enumerate((patterns, layers, {"modules_to_save": ["ani"]})):
        model, tokenizer = pair(FAMILY)
        attach(model, tokenizer, AniConfig(layer=2, gate_hidden_size=8))
        lora: dict[str, Any] = {"target_modules": ["q_proj", "down_proj"], **settings, "r": 4}
        trained = get_peft_model(model, LoraConfig(**lora, init_lora_weights=False, task_type="CAUSAL_LM")).eval()
        save_adapter(trained, tmp_path / str(place))
        loaded = load_adapter(pair(FAMILY)[0], tokenizer, tmp_path / str(place))
        assert torch.equal(mixed_logits(loaded, tokenizer), mixed_logits(trained, tokenizer))


# --- the hub ---


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In place of the hub: a folder with one a repository; names without a user are `me`'s."""
    folder = tmp_path / "hub"

    def create_repo(self: HfApi, name: str, *, exist_ok: bool) -> RepoUrl:
        place = folder / (name if "/" in name else f"me/{name}")
        place.mkdir(parents=True, exist_ok=exist_ok)
        return RepoUrl(f"https://huggingface.co/{place.relative_to(folder)}")

    def upload_folder(self: HfApi, *, repo_id: str, folder_path: Path, allow_patterns: list[str]) -> None:
        for file in folder_path.iterdir():
            if file.name in allow_patterns:
                shutil.copy(file, folder / repo_id)

    def download(name: str, *, revision: str | None, allow_patterns: list[str]) -> str:
        return str(folder / name) if revision in (None, "main") else refuse(revision)

    def refuse(revision: str | None) -> str:
        raise OSError(f"no revision {revision}")

    monkeypatch.setattr(HfApi, "create_repo", create_repo)
    monkeypatch.setattr(HfApi, "upload_folder", upload_folder)
    monkeypatch.setattr(adapter_files, "snapshot_download", download)
    return folder


def test_an_adapter_goes_to_the_hub_and_comes_back(hub: Path, tmp_path: Path) -> None:
    model, tokenizer = attached(FAMILY)
    save_adapter(model, tmp_path / "adapter")
    (tmp_path / "adapter" / "notes.txt").touch()
    for name in ("sums", "me/sums"):  # the second time it is updated
        hub_module.push_adapter(tmp_path / "adapter", name)
    assert {file.name for file in (hub / "me" / "sums").iterdir()} == {CONFIG_FILE, WEIGHTS_FILE, "README.md"}
    fresh, _ = pair(FAMILY)
    load_adapter(fresh, tokenizer, "me/sums", revision="main")
    torch.testing.assert_close(ani_module(fresh).state_dict(), ani_module(model).state_dict(), atol=0, rtol=0)
    detach(fresh)
    refused(lambda: load_adapter(fresh, tokenizer, "me/sums", revision="v2"), "me/sums", "no revision v2")


def test_the_model_card_gets_results_and_a_licence(hub: Path, saved: Path, results: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(saved, tmp_path / "adapter"))
    command = ["push", str(folder), "sums", "--results", str(results / "first"), "--license", "apache-2.0"]
    for _ in range(2):  # the second time in place of the first
        done = CliRunner().invoke(app, command, catch_exceptions=False)
        assert "https://huggingface.co/me/sums" in done.output
        card = ModelCard.load(hub / "me" / "sums" / "README.md")
        assert (card.data.library_name, card.data.license, card.data.tags) == ("ani", "apache-2.0", ["ani", "numeracy"])
        assert "# ANI adapter\n" in card.text and card.text.count("## Results") == 1
        assert "### Arithmetic" in card.text and "| --- |" in card.text and "--limit 2" in card.text
    load_adapter(*pair(FAMILY), folder)


def test_the_model_card_names_the_base(saved: Path) -> None:
    named = {"smollm2": "HuggingFaceTB/SmolLM2-135M-Instruct", "Qwen/Qwen3-8B": "Qwen/Qwen3-8B", "/models/qwen": None}
    for source, name in named.items():
        assert ModelCard(hub_module.adapter_card("sft", None, source)).data.base_model == name
    refused(lambda: hub_module.push_adapter(saved, "me/sums"), str(saved), "me/sums")  # the tests' hub is offline


# --- the base model ---------------------------------------------------------------------------------------------------


def test_the_name_of_the_base(damaged: Path, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    for given, found in (
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B"),
        ("models", str(tmp_path / "models")),
        ("/home/other/.cache/ani/smollm2-135m-instruct-0.1", "smollm2"),
    ):
        edit_config(damaged / CONFIG_FILE, base=given)
        assert Adapter.read(damaged).base_model() == found
    for given, named in ((None, str(damaged)), ("/gone/model", "/gone/model")):
        edit_config(damaged / CONFIG_FILE, base=given)
        refused(lambda: Adapter.read(damaged).base_model(), named, "--model")
    assert Adapter.read(damaged).digest() != Adapter.read(shutil.copytree(saved, tmp_path / "copy")).digest()
    assert Adapter.read(saved).digest() == Adapter.read(tmp_path / "copy").digest()
    assert lasting_name(str(embedded_model_directory())) == "smollm2"
    assert Adapter.read("smollm2-adapter").base_model() == "smollm2"


def test_the_commit_of_the_base_is_kept(tmp_path: Path) -> None:
    model, tokenizer = attached(FAMILY)
    own, other = "a" * 40, "b" * 40
    for name, commit, base in (("me/a", own, f"me/a@{own}"), ("me/a", None, "me/a"), ("gpt2", own, "gpt2")):
        model.name_or_path, model.config._commit_hash = name, commit
        save_adapter(model, tmp_path / "adapter")
        assert Adapter.read(tmp_path / "adapter").base_model() == base
        assert ModelCard.load(tmp_path / "adapter" / "README.md").data.base_model == name
    edit_config(tmp_path / "adapter" / CONFIG_FILE, base=f"me/a@{own}")
    for name, commit, warned in (
        ("me/a", own, False),
        ("me/a", None, False),
        ("me/a", other, True),
        ("b/b", own, True),
    ):
        model, tokenizer = pair(FAMILY)
        model.name_or_path, model.config._commit_hash = name, commit
        with pytest.warns(UserWarning, match=f"{own}.*{name}@{commit}") if warned else nullcontext():
            load_adapter(model, tokenizer, tmp_path / "adapter")


def test_trained_base_weights_that_an_adapter_lacks_are_warned_of(tmp_path: Path) -> None:
    for frozen in (True, False):
        model, tokenizer = pair(FAMILY)
        attach(model.requires_grad_(not frozen), tokenizer, AniConfig(layer=2, gate_hidden_size=8))
        save_adapter(model, tmp_path / "new")  # nothing is trained yet
        optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-3)
        ids = encode(tokenizer)
        model.train()(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        with nullcontext() if frozen else pytest.warns(UserWarning, match="save_pretrained"):
            save_adapter(model, tmp_path / "trained")


def test_only_the_first_of_several_processes_writes(tmp_path: Path) -> None:
    """Rank 1 of two processes writes no adapter, rank 0 does."""
    for rank in (1, 0):
        distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=2)
        try:
            save_adapter(attached("llama")[0], tmp_path / "adapter")
        finally:
            distributed.destroy_process_group()
        assert (tmp_path / "adapter").exists() == (rank == 0)


@pytest.mark.parametrize("existing", [False, True])
def test_saving_that_fails_changes_nothing(
    existing: bool, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if existing:
        shutil.copytree(saved, tmp_path / "adapter")
    before = contents(tmp_path)

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise OSError("no space left on device")

    monkeypatch.setattr(adapter_module, "adapter_card", fail)  # after the weights
    with pytest.raises(OSError, match="no space"):
        save_adapter(attached(FAMILY)[0], tmp_path / "adapter")
    assert contents(tmp_path) == before
