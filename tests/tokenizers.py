"""Real tokenizers for the tests, from packages that ship their files."""

import json
import re
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
import sentencepiece
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import LlamaTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import TikTokenConverter
from transformers.tokenization_utils_base import generate_merges

from ani.models import load_tokenizer

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
QWEN3 = """\
{%- for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}
{%- if enable_thinking is defined and not enable_thinking %}{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}"""
"""Qwen3 thinks unless it is told not to."""
# The families' split patterns differ in one place: how many digits a token may hold.
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}DIGITS"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@cache
def qwen() -> PreTrainedTokenizerBase:
    """Qwen: byte-level BPE, one digit a token, no BOS; ChatML."""
    backend = TikTokenConverter(
        vocab_file=str(_package_file("dashscope", "resources/qwen.tiktoken")),
        pattern=_SPLIT.replace("DIGITS", ""),
        extra_special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
    ).converted()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=CHATML
    )


@cache
def llama3() -> PreTrainedTokenizerBase:
    """Llama 3: byte-level BPE, up to three digits a token, BOS, special tokens with digits in their names."""
    named = ["<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>", "<|reserved_special_token_1|>"]
    named += ["<|finetune_right_pad_id|>", "<|step_id|>", "<|start_header_id|>", "<|end_header_id|>"]
    named += ["<|eom_id|>", "<|eot_id|>", "<|python_tag|>"]
    special = named + [f"<|reserved_special_token_{i + 2}|>" for i in range(256 - len(named))]
    backend = TikTokenConverter(
        vocab_file=str(_package_file("llama_models", "llama3/tokenizer.model")),
        pattern=_SPLIT.replace("DIGITS", "{1,3}"),
        extra_special_tokens=special,
    ).converted()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<|begin_of_text|>",
        eos_token="<|eot_id|>",
        pad_token="<|finetune_right_pad_id|>",
    )


@cache
def mistral() -> PreTrainedTokenizerBase:
    """Mistral v0.3: sentencepiece with byte fallback, `▁` before a number, pad is EOS."""
    path = _package_file("mistral_common", "data/mistral_instruct_tokenizer_240323.model.v3")
    model = sentencepiece.SentencePieceProcessor(model_file=str(path))
    vocab = {model.id_to_piece(i): i for i in range(model.get_piece_size())}
    control = [model.id_to_piece(i) for i in range(len(vocab)) if model.is_control(i)]
    return LlamaTokenizer(vocab=vocab, merges=generate_merges(vocab), pad_token="</s>", extra_special_tokens=control)


@cache
def gemma_like() -> PreTrainedTokenizerBase:
    """Gemma's way in small: `▁` for spaces, none in front, byte fallback, single digits, BOS, pad."""
    special = ["<pad>", "<eos>", "<bos>", "<unk>"]
    backend = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex("[0-9]"), behavior="isolated"),
            pre_tokenizers.Split(" ", behavior="merged_with_previous"),
        ]
    )
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=special,
        initial_alphabet=[chr(i) for i in range(33, 127)] + ["▁", "\n"],
        show_progress=False,
    )
    text = (
        "Each of the seven shops sold 12 apples at $3.50 and 40 pears at $1.25. How many dollars did they "
        "earn in all? The total is 7 * (12 * 3.5 + 40 * 1.25) = 644 dollars, that is -6% of 1,234,567 less. "
        "The room 505 holds ten people; from 1999 to 2024 the version changed to 2.0.1. "
    )
    backend.train_from_iterator([text] * 20, trainer)
    # The trainer knows no byte tokens but special ones, which these are not: add them to what it learnt.
    learnt = json.loads(backend.to_str())["model"]
    vocab = learnt["vocab"]
    vocab |= {f"<0x{byte:02X}>": len(vocab) + byte for byte in range(256)}
    merges = [tuple(merge) for merge in learnt["merges"]]
    backend.model = models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>", unk_token="<unk>"
    )


@cache
def smollm2() -> PreTrainedTokenizerBase:
    """SmolLM2: byte-level BPE, single digits; ChatML."""
    return load_tokenizer("smollm2")


@cache
def shortened(tokenizer: PreTrainedTokenizerBase, words: int) -> PreTrainedTokenizerBase:
    """A tokenizer with its first words alone, for models: most of a tiny one's work is the head over all of them. It
    splits texts as before, and has all numbers, characters and special tokens."""
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    added, ids = {token["content"] for token in state["added_tokens"]}, state["model"]["vocab"]
    kept = [
        word
        for word in sorted(ids, key=ids.__getitem__)
        if ids[word] < words or len(word) == 1 or word in added or re.fullmatch("[0-9]+", word)
    ]
    vocabulary = {word: number for number, word in enumerate(kept)}
    state["model"] |= {
        "vocab": vocabulary,
        "merges": [pair for pair in state["model"]["merges"] if {*pair, "".join(pair)} <= vocabulary.keys()],
    }
    for token in state["added_tokens"]:
        token["id"] = vocabulary.setdefault(token["content"], len(vocabulary))
    first, begins = tokenizer.bos_token, tokenizer("a")["input_ids"][0] == tokenizer.bos_token_id
    if begins:
        state["post_processor"] = None  # it has the old ids
    backend = Tokenizer.from_str(json.dumps(state))
    if begins:
        backend.post_processor = processors.TemplateProcessing(
            f"{first} $A", special_tokens=[(first, vocabulary[first])]
        )
    special = dict(tokenizer.special_tokens_map)
    return PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=tokenizer.chat_template, **special)


ALL: dict[str, Callable[[], PreTrainedTokenizerBase]] = {
    "qwen": qwen,
    "llama3": llama3,
    "mistral": mistral,
    "gemma_like": gemma_like,
    "smollm2": smollm2,
}


def _package_folder(package: str) -> Path:
    """Where a package lies, without importing it: its own dependencies may be missing."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"{package} is not installed (pip install --no-deps -r requirements-assets.txt)")
    return Path(next(iter(spec.submodule_search_locations)))


def _package_file(package: str, name: str) -> Path:
    path = _package_folder(package) / name
    if not path.is_file():
        pytest.skip(f"{package} does not hold {name}")
    return path
