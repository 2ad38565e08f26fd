"""The paper's facts, read from its text (sections and tables in comments), and the places where ours differ by name."""

from typing import Any

MODULE: dict[str, Any] = {
    # "Hyperparameters", Eq. 4, "Topology Encoding"; `sign`: φ(x) of x itself.
    "encoders": ("fourier",),
    "integer_digits": 10,
    "fraction_digits": 6,
    "overflow": "wrap",
    "sign": "phase",
    "gate_dropout": 0.1,
    "penalty": 0.1,
    "role_weight": 0.0,
    "gate_layers": (),
    "gate_context": (),
    "gate_bias": 0.0,
}
"""What every row's module has unless the row says otherwise."""
LORA = {"r": 64, "alpha": 128}
TRAINING = {
    "learning_rate": 5e-5,
    "warmup_steps": 0,  # the rate is constant
    "decay": 0.0,
    "batch_size": 1,
    "gradient_accumulation": 32,
    "max_length": 4096,
    "number_loss": 0.0,
}
NUMBER_LOSS = {"sft-ntl": 0.3}
"""A row of ours."""
QUANTIZATION = "nf4"
"""QLoRA."""

ANI = {"policy": "terminal", "gate": "learned", "combine": "add"}
_INPUT = {"layer": 0, "policy": "terminal", "scope": "prompt", "gate": "open", "combine": "substitute"}
METHODS: dict[str, dict[str, Any] | None] = {
    # "Baselines", Table 1; None: no module.
    "ani": ANI,
    "sft": None,
    "digitwise": {"layer": 0, "policy": "digitwise", "scope": "prompt", "gate": "open", "combine": "add"},
    "xval": {**_INPUT, "encoders": ("magnitude",)},
    "fone": {**_INPUT, "encoders": ("fourier",)},
    "numerologic": None,
    # Table 3: "Static Injection replaces tokens without gating, while Digit-wise Injection applies the gate to every
    # sub-word digit token"; both at layer l.
    "static": {"policy": "terminal", "gate": "open", "combine": "replace"},
    "static-additive": {"policy": "terminal", "gate": "open", "combine": "add"},  # ours: ANI without the gate
    "digitwise-gated": {"policy": "digitwise", "gate": "learned", "combine": "add"},
}
NEEDED = {"ani.gate_norm", "training.loss_on"}
"""Deviations without which nothing would train, or which generation could not repeat."""
LITERAL = {"scope": "all", "embedding_scale": 1.0, "penalty_ramp": 0.0}
"""Algorithm 1 to the letter, the module learning as LoRA does: the row `ani-literal`."""

LAYERS = {
    "Qwen/Qwen3-4B": 21,
    "Qwen/Qwen3-8B": 24,
    "Qwen/Qwen3-32B": 37,
    "meta-llama/Llama-3.1-8B": 14,
    "mistralai/Mistral-7B-v0.3": 30,
}
SHAPES: dict[str, tuple[str, dict[str, int]]] = {
    # Family and published shape.
    name: (family, {"hidden_size": width, "num_hidden_layers": depth, "vocab_size": words})
    for name, family, width, depth, words in [
        ("Qwen/Qwen3-4B", "qwen3", 2560, 36, 151_936),
        ("Qwen/Qwen3-8B", "qwen3", 4096, 36, 151_936),
        ("Qwen/Qwen3-32B", "qwen3", 5120, 64, 151_936),
        ("meta-llama/Llama-3.1-8B", "llama", 4096, 32, 128_256),
        ("mistralai/Mistral-7B-v0.3", "mistral", 4096, 32, 32_768),
    ]
}

_BENCHMARKS = ("math", "gsm8k", "mmlu")


def _row(*percents: float) -> dict[str, float]:
    return dict(zip(_BENCHMARKS, percents, strict=False))


_DIGITS = (2, 4, 6, 8, 10, 12)


def _additions(*percents: float) -> dict[str, float]:
    return {f"{digits} digits": percent for digits, percent in zip(_DIGITS, percents, strict=True)}


PUBLISHED: dict[str, dict[str, dict[str, float]]] = {
    "main-results": {  # Table 1, and of ANI minus xVal Table 5 in points
        "reference": _row(49.28, 89.84, 73.75),
        "sft": _row(55.18, 87.79, 72.24),
        "digitwise": _row(56.44, 88.17, 72.56),
        "xval": _row(58.32, 90.83, 72.50),
        "fone": _row(55.08, 89.61, 72.30),
        "numerologic": _row(47.56, 42.99, 72.45),
        "ani": {**_row(58.76, 90.14, 72.67), "levels 1–3 gain": -0.49, "levels 4–5 gain": 1.34},
    },
    "n-digit": {  # Table 2
        "reference": _additions(75.0, 48.0, 6.0, 0.0, 0.0, 0.0),
        "sft": _additions(100.0, 95.0, 88.0, 73.0, 44.0, 50.0),
        "ani": _additions(100.0, 98.0, 88.0, 67.0, 68.0, 82.0),
    },
    "ablation": {  # Table 3
        "static": _row(8.60, 62.70, 71.41),
        "digitwise-gated": _row(58.70, 90.37, 72.29),
        "ani": _row(58.76, 90.14, 72.67),
    },
    "scalability-llama-3.1-8b": {  # Table 4
        "reference": _row(20.5, 55.3),
        "sft": _row(26.4, 63.5),
        "xval": _row(21.2, 59.5),
        "ani": _row(27.2, 63.5),
    },
    "scalability-mistral-7b-v0.3": {
        "reference": _row(11.4, 37.5),
        "sft": _row(16.6, 52.4),
        "xval": _row(16.2, 51.0),
        "ani": _row(15.0, 54.4),
    },
    "scalability-qwen3-4b": {
        "reference": _row(47.0, 87.4),
        "sft": _row(48.2, 82.8),
        "xval": _row(47.2, 82.5),
        "ani": _row(49.5, 85.2),
    },
    "scalability-qwen3-32b": {
        "reference": _row(60.0, 91.4),
        "sft": _row(62.5, 92.0),
        "xval": _row(61.6, 89.2),
        "ani": _row(63.1, 93.5),
    },
    "layer-sensitivity": {"layer-24": _row(58.76)},  # Figure "Layer Sensitivity Analysis"
}
FIGURES = ("48%", "24%", "75.8%", "92.9%", "69.6%", "0.43", "0.0008")
"""Figure 6 (MATH, MMLU), FiNER-139, tool routing with and without ANI, and MMLU's gain over SFT with its p."""
PROBE = "93% at layer 24"

MODELS = {
    **dict.fromkeys(("main-results", "n-digit", "ablation", "layer-sensitivity"), "Qwen/Qwen3-8B"),
    "scalability-llama-3.1-8b": "meta-llama/Llama-3.1-8B",
    "scalability-mistral-7b-v0.3": "mistralai/Mistral-7B-v0.3",
    "scalability-qwen3-4b": "Qwen/Qwen3-4B",
    "scalability-qwen3-32b": "Qwen/Qwen3-32B",
}
ROWS = {
    # Comparison: variant, and the method that it trains.
    "main-results": {
        **{name: name for name in ("sft", "digitwise", "xval", "fone", "numerologic", "ani")},
        "ani-literal": "ani",
        "sft-ntl": "sft",
    },
    "n-digit": {"sft": "sft", "ani": "ani"},
    "ablation": {name: name for name in ("static", "static-additive", "digitwise-gated", "ani")},
    "layer-sensitivity": {f"layer-{layer}": "ani" for layer in (3, 12, 18, 24, 30)},
    **{name: {"sft": "sft", "xval": "xval", "ani": "ani"} for name in PUBLISHED if name.startswith("scalability-")},
}
BASELINES = {"main-results": "xval"}
"""Table 5 compares ANI to xVal in pairs."""
ASKED = {
    name: {"math", "gsm8k"} if name.startswith("scalability-") else {"math", "gsm8k", "mmlu"}
    for name in PUBLISHED
    if name not in ("n-digit", "layer-sensitivity")
} | {"n-digit": {"arithmetic"}, "layer-sensitivity": {"math"}}
"""The tasks of the paper that a comparison asks, whole."""

DIGITS, PROBLEMS = _DIGITS, 100
"""Table 2: lengths, and problems of each."""
DIAGNOSTIC_TEXTS = 10_000
"""Of each role ("Diagnostic Dataset Construction")."""
DIAGNOSTIC_SOURCES = ("nvidia/OpenMathInstruct-2", "Magpie-Align/Magpie-Pro-MT-300K-v0.1")
EXCLUDED_TERMS = ("math", "calculation", "algebra", "python", "algorithm", "sql")
HUB = {"gsm8k": "openai/gsm8k", "math": "EleutherAI/hendrycks_math", "mmlu": "cais/mmlu"}
MATH_SUBJECTS = 7
MMLU_SUBJECTS, MMLU_SHOTS = 57, 5
HARD_LEVELS = {1: False, 2: False, 3: False, 4: True, 5: True}
BOOTSTRAP_SAMPLES = 1000
FINER = "finer-139"
NOMINAL_TAGS = {"DebtInstrumentMaturityDate"}
LONGEST_TEXT = 4096
"""Tokens of prompt and answer together."""

# Ours, by name: docs/paper.md has a row for each, and tests/paper/deviations.py asks the code.
DEVIATIONS: dict[str, tuple[Any, Any]] = {
    # Name: the paper's, and ours.
    "ani.policy": ("terminal", "after"),
    "ani.scope": ("all", "prompt"),
    "ani.sign": ("phase", "feature"),
    "ani.embedding_scale": (1, None),
    "ani.penalty_ramp": (0, 0.1),
    "training.module_learning_rate": (5e-5, 1e-3),
    "ani.gate_norm": (False, True),
    "the layer": ("random split", "held-out"),
    "training.loss_on": ("all", "answer"),
    "enough data": ("texts", "numbers"),
    "numbers that FoNE and xVal write": ("head", "digits"),
    "xVal's value": ("linear", "logarithmic"),
    "Table 2's integer digits": (10, 13),
    "GSM8K's answer": ("####", "The answer is"),
    "tool routing": (50, 64),
    "Python": (3.10, ">=3.11"),
    "GB of the GPU": (24, 80),
}
UNSAID: dict[str, Any] = {
    # Where the paper is silent.
    "training.epochs": 1,
    "training.max_gradient_norm": 1.0,
    "ani.gate_hidden_size": 128,
    "lora.target_modules": "all-linear",
    "lora.dropout": 0.0,
    "weight decay": 0.0,
    "precision": "auto",
    "seeds": 1,
    "training.random_start": False,
    "α at the start": 0.5,
    "W_P of static, xval and fone at the start": "random",
    "the state of layer l": "after l blocks",
    "terms that exclude a chat": 317,
    "where they are searched": "every turn",
    "turns of a chat": "first",
    "the same question again": "dropped",
    "order of a source": 10_000,
    "numbers of list items": "removed",
    "a long labelled text": 2000,
    "overlap with the tests": "kept",
    "Table 2's problems": "addition",
    "sums that Table 2 learns from": 20_000,
    "tokens of GSM8K's answers": 512,
    "tokens of MATH's answers": 2048,
    "MATH's verdict": "math-verify",
    "chats of models without a template": "plain",
    "thinking of chat templates": False,
    "Figure 6's texts": "question",
    "who answers": "auto",
}
NOT_OF_THE_METHOD = {
    # Measured when attaching, or without influence on the result.
    "ani.layer",
    *(f"ani.{key}" for key in ("hidden_size", "value_size", "model_type", "num_hidden_layers")),
    *(f"training.{key}" for key in ("steps", "gradient_checkpointing", "log_every", "save_every")),
}
