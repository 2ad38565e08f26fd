"""The project's side of the comparison: one short function for each place in the code that has a fact of the paper."""

import hashlib
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import ani
from ani.compare.plan import Comparison, variant_recipes
from ani.data.openmath_magpie import build_openmath_magpie
from ani.data.sources import AnySource
from ani.evaluation.engines import TransformersEngine
from ani.evaluation.tasks import TASKS
from ani.evaluation.tasks.gates import read_texts
from ani.evaluation.tasks.routing import routing_queries
from ani.injection.methods import METHODS
from ani.injection.model_parts import ani_module, last_decision
from ani.settings import load_settings
from ani.training.recipe import Recipe
from ani.training.trainer import adamw
from tests.answers import answers_of
from tests.tokenizers import qwen

RECIPES = Path(ani.__file__).parent / "recipes" / "paper"
DOCS = Path(__file__).parents[2] / "docs"


def role_name(role: Any) -> str | None:
    """`nominal` or `quantitative`, however the code writes it; None: unknown."""
    name = role if isinstance(role, str) or role is None else role.name.lower()
    return None if name == "unknown" else name


def digest(texts: Any) -> str:
    """A short hash of texts in their order."""
    return hashlib.sha256(json.dumps(texts, ensure_ascii=False).encode()).hexdigest()[:12]


@cache
def comparison(name: str) -> Comparison:
    """A comparison of recipes/paper, as it is written."""
    return load_settings(RECIPES / f"{name}.yaml", Comparison)


@cache
def rows(name: str) -> dict[str, Recipe]:
    """The recipe that each variant of a comparison trains."""
    return variant_recipes(RECIPES / f"{name}.yaml")


def method_settings(name: str) -> dict[str, Any] | None:
    """What a method fixes of its module; None: it has none."""
    settings = METHODS[name].settings
    return None if settings is None else dict(settings)


def written_by(name: str, text: str) -> str:
    """A text as a method's model reads it."""
    return METHODS[name].write(text)


def optimizer(recipe: Recipe, model: PreTrainedModel) -> torch.optim.Optimizer:
    return adamw(model, recipe.training)


def question(task: str, data: Path) -> Any:
    """The first question of a benchmark from a file or folder: `.messages`, and `.generation` with its limits."""
    return TASKS[task](data=str(data)).questions(0)[0]  # type: ignore[attr-defined]


def additions() -> list[Any]:
    """The problems of the task `arithmetic` as it is by default."""
    return TASKS["arithmetic"]().questions(0)


def arithmetic_verdict(digits: int, off_by: int) -> bool:
    """Whether the task `arithmetic` counts an answer that is off by so much as right."""
    task: Any = TASKS["arithmetic"]()
    problem = next(each for each in task.questions(0) if each.digits == digits)

    class Wrote(TransformersEngine):
        def __init__(self) -> None:
            self.tokenizer, self.method = qwen(), METHODS["ani"]

        def generate(self, prompts: Sequence[Any], *_: Any, **__: Any) -> Any:
            return ((place, f" {problem.answer + off_by}") for place in range(len(prompts)))

    (record,) = answers_of(task, Wrote(), [problem])
    return bool(record.correct)


def built_set(out: Path, quantitative: Path, nominal: Path, count: int) -> str:
    """The training file of a set that is made of local files."""
    build_openmath_magpie(out, quantitative=str(quantitative), nominal=str(nominal), count=count)
    return (out / "train.jsonl").read_text(encoding="utf-8")


def finer_labels(data: Path) -> list[list[str | None]]:
    """The role of every number of FiNER's sentences in a file; None: unknown."""
    texts = read_texts(f"finer={data}", [], None, None, 0)
    return [[label and role_name(label.role) for label in text.labels or ()] for text in texts]


def routing() -> list[tuple[str, list[str]]]:
    """Each query with the roles of its numbers."""
    return [(query.text, [str(role_name(number.role)) for number in query.numbers]) for query in routing_queries()]


def module_of(model: PreTrainedModel) -> Any:
    """The attached module: `.projection` is W_P, `.gate` the gate or None."""
    return ani_module(model)


def alphas(model: PreTrainedModel) -> torch.Tensor:
    """α of the numbers of the last forward pass, (N,)."""
    decision = last_decision(model)
    assert decision is not None
    return decision.injection.alpha


def gate_logits(model: PreTrainedModel) -> torch.Tensor:
    decision = last_decision(model)
    assert decision is not None
    return decision.injection.logits


def drawn(source: dict[str, Any], seed: int) -> str:
    """A hash of the examples of a recipe's data source."""
    examples = TypeAdapter[Any](AnySource).validate_python(source).examples(seed)
    return digest([[each.prompt, each.completion, list(map(role_name, each.roles or ()))] for each in examples])


def records(
    task: str, settings: dict[str, Any], model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> list[Any]:
    """What a task records of a model's answers."""
    asked = TASKS[task](**settings)
    return answers_of(asked, TransformersEngine(model, tokenizer), asked.questions(0))
