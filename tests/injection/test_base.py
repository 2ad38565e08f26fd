"""An adapter knows its model: by name, and by a few of its weights, in whatever precision it is loaded."""

import json
import warnings
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import PreTrainedModel

from ani import AniConfig, InputError, attach, detach, load_adapter, save_adapter
from ani.injection.adapter import CONFIG_FILE, adapter_base
from ani.injection.base import Base
from ani.models import embedded_model_directory, lasting_name, load_model, load_tokenizer
from tests.tiny import pair, tiny

FAMILY = "qwen3"  # with a real vocabulary


def loads(model: PreTrainedModel, adapter: Path) -> str | None:
    """What `load_adapter` warns about, if anything."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", UserWarning)
        load_adapter(model, pair(FAMILY)[1], adapter)
    told = [str(each.message) for each in warned if "trained on other weights" in str(each.message)]
    assert len(told) <= 1
    return told[0] if told else None


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a model that came from nowhere, with LoRA on the embedding and on what is sampled."""
    path = tmp_path_factory.mktemp("base") / "adapter"
    model, tokenizer = pair(FAMILY)
    targets = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)]
    lora = LoraConfig(target_modules=[*targets, "embed_tokens"], init_lora_weights=False, task_type="CAUSAL_LM")
    save_adapter(attach(get_peft_model(model, lora), tokenizer, AniConfig(layer=2)), path)
    return path


def test_other_weights_of_the_same_shape(adapter: Path) -> None:
    base = Base.model_validate(json.loads((adapter / CONFIG_FILE).read_text())["base"])
    assert base.name is None and [len(values) for values in base.sample.values()] == [16, 16]
    model = tiny(FAMILY)
    assert not base.differs(model.to(torch.bfloat16)) and not base.differs(tiny(FAMILY).to(torch.float16))
    model.resize_token_embeddings(model.config.vocab_size + 8, mean_resizing=False)
    assert not base.differs(model)
    assert loads(tiny(FAMILY), adapter) is None

    torch.manual_seed(1)
    told = loads(type(model)(tiny(FAMILY).config), adapter)
    assert told is not None and str(adapter) in told and "not named" in told
    for fine_tuned in base.sample:
        model = tiny(FAMILY)
        model.get_parameter(fine_tuned).data.mul_(1.05)
        assert base.differs(model)


def test_modules_that_peft_keeps_beside_the_base() -> None:
    model, tokenizer = pair(FAMILY)
    base = Base.of(model)
    lora = LoraConfig(target_modules=["q_proj"], modules_to_save=["embed_tokens", "ani"], task_type="CAUSAL_LM")
    trained = get_peft_model(attach(model, tokenizer, AniConfig(layer=2)), lora)
    trained.get_input_embeddings().weight.data.zero_()
    assert Base.of(trained.get_base_model()) == base


def test_four_bits(adapter: Path, tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    tiny(FAMILY).save_pretrained(tmp_path / "model")
    quantized = load_model(str(tmp_path / "model"), dtype="bfloat16", quantization="nf4", device="cpu")
    save_adapter(attach(quantized, pair(FAMILY)[1], AniConfig(layer=2)), tmp_path / "quantized")
    assert adapter_base(tmp_path / "quantized") == str(tmp_path / "model")
    base = Base.of(detach(quantized))
    assert len(base.sample) == 1 and not base.differs(tiny(FAMILY))
    torch.manual_seed(1)
    assert base.differs(type(quantized)(tiny(FAMILY).config))
    assert loads(quantized, adapter) is None


def test_the_name(adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "adapter").mkdir()
    for file in adapter.iterdir():
        (tmp_path / "adapter" / file.name).write_bytes(file.read_bytes())

    def name(value: str | None) -> None:
        path = tmp_path / "adapter" / CONFIG_FILE
        path.write_text(json.dumps({**json.loads(path.read_text()), "base": {"name": value}}))

    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    for given, found in (
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B"),
        ("models", str(tmp_path / "models")),
        ("/home/other/.cache/ani/smollm2-135m-instruct-0.1", "smollm2"),
    ):
        name(given)
        assert adapter_base(tmp_path / "adapter") == found
    for given, words in ((None, "doesn't name the model"), ("/gone/model", "/gone/model, which isn't there any more")):
        name(given)
        with pytest.raises(InputError, match=words) as error:
            adapter_base(tmp_path / "adapter")
        assert "--model" in str(error.value)


def test_the_embedded_model_and_its_adapters() -> None:
    load_tokenizer("smollm2")
    assert lasting_name(str(embedded_model_directory())) == "smollm2"
    assert adapter_base("smollm2-adapter") == adapter_base("smollm2-calculator") == "smollm2"
