"""A short training by TRL's SFTTrainer, in one process or several."""

from pathlib import Path

import torch
from datasets import Dataset
from peft import LoraConfig
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer

import ani

ROWS = [{"prompt": f"{i} + {3 * i} =", "completion": f" {4 * i}"} for i in range(11, 15)]


def train_by_sft(model_path: str, out: Path, batch_size: int) -> bool:
    """Train two steps of all rows, and save the adapter in `out`; returns whether all weights were sharded, or with
    DeepSpeed their gradients."""
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(model_path)
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    ani.attach(model, tokenizer, ani.AniConfig(layer=1, gate_hidden_size=8, gate_dropout=0.0, penalty=0.0))
    settings = SFTConfig(
        str(out / "trainer"),
        max_steps=2,
        per_device_train_batch_size=batch_size,
        learning_rate=0.5,
        lr_scheduler_type="constant",
        optim="sgd",  # AdamW would turn rounding errors of tiny gradients into whole steps
        bf16=False,
        use_cpu=True,
        ddp_find_unused_parameters=False,
        save_strategy="no",
        report_to="none",
    )
    lora = LoraConfig(r=4, target_modules="all-linear", modules_to_save=["ani"], task_type="CAUSAL_LM")
    rows = Dataset.from_list(ROWS)
    trainer = SFTTrainer(model, settings, train_dataset=rows, processing_class=tokenizer, peft_config=lora)
    trainer.train()
    ani.save_adapter(trainer.model, out / "adapter")
    if trainer.is_deepspeed_enabled:
        return trainer.model_wrapped.zero_optimization_partition_gradients()
    return all(isinstance(parameter, DTensor) for parameter in trainer.model.parameters())
