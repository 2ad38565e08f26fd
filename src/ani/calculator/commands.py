"""`ani calculator`: fit a calculator to a model, ask for an exact value, and look at the gate."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import typer
from typer import Argument, Option

from ani.terminal import console, console_for, say_where

app = typer.Typer(
    no_args_is_help=True, help="Exact values that a text asks for, written by a frozen model where its gate is open."
)

PLACES = 20
"""Places after the point of a printed value with endless digits."""

ModelOption = Annotated[str, Option("--model", help="Directory, hub name, or smollm2 (embedded).")]
JsonOption = Annotated[bool, Option("--json", help="Print JSON for scripts.")]


@app.command()
def fit(
    out: Annotated[Path, Option(help="Directory for the calculator.")],
    model: ModelOption = "smollm2",
    asked: Annotated[int, Option(min=1, help="Number of texts that ask for a calculation.")] = 2000,
    unasked: Annotated[int, Option(min=1, help="Number of chats that ask for none; the model answers them.")] = 2000,
    sentences: Annotated[int, Option(min=0, help="Number of sentences that end at an equals sign.")] = 1000,
    seed: Annotated[int, Option(help="Seed of the texts and of the fit.")] = 0,
    backend: Annotated[
        Literal["auto", "transformers", "vllm"],
        Option(
            help="Backend that writes the model's answers. auto: vllm, if it is installed, uses a GPU and can serve "
            "the model; else transformers."
        ),
    ] = "auto",
) -> None:
    """Fit a calculator's gate to a model, which is not trained. The model answers chats first. The next run continues a
    killed one with these answers."""
    from ani.calculator.calculator import CONFIG_FILE, Calculator
    from ani.calculator.fit import answer_by_vllm
    from ani.errors import InputError
    from ani.evaluation.engines import vllm_serves_on_gpu
    from ani.files import check_replaceable
    from ani.models import load_model, load_tokenizer

    check_replaceable(out, "calculator", (out / CONFIG_FILE).is_file())
    answers = out.with_name(f"{out.name}.answers.jsonl")
    if backend == "vllm" or (backend == "auto" and vllm_serves_on_gpu()):
        try:
            answer_by_vllm(model, unasked, seed, answers)
        except InputError as error:
            if backend == "vllm":
                raise
            console.print(f"transformers answers the chats, because {error}", markup=False)
    settings = {"asked": asked, "unasked": unasked, "sentences": sentences, "seed": seed}
    found = Calculator.fit(load_model(model), load_tokenizer(model), answers=answers, console=console, **settings)
    found.save(out)
    answers.unlink(missing_ok=True)
    say_where("calculator", out.resolve())


@app.command()
def ask(text: Annotated[str, Argument(help='For example "What is 3 + 4?".')], as_json: JsonOption = False) -> None:
    """Print the exact value that a text asks for, without a model. Exit code 1: it asks for none, or is ambiguous."""
    from ani.calculator.asked import asked, shown

    value = asked(text)
    digits = value and shown(value, PLACES)
    if as_json:
        facts = value and {
            "value": str(digits).rstrip("…"),
            "fraction": None if value.rational is None else str(value.rational),
            "exact": value.ends is not None,
        }
        print(json.dumps(facts))
    else:
        print(digits or "no value")
    if value is None:
        raise typer.Exit(1)


@app.command()
def inspect(
    text: Annotated[str, Argument(help="A user's message.")],
    model: ModelOption = "smollm2",
    calculator: Annotated[str, Option(help="Calculator: directory, hub name, or smollm2-calculator.")] = (
        "smollm2-calculator"
    ),
    as_json: JsonOption = False,
) -> None:
    """Show each token at which a value is pending, the value, and whether the gate is open."""
    from ani.calculator import Calculator
    from ani.calculator.inspection import decisions, table
    from ani.models import load_model, load_tokenizer

    tokenizer = load_tokenizer(model)
    found = decisions(Calculator.load(calculator, loaded := load_model(model), tokenizer), loaded, tokenizer, text)
    if as_json:
        print(json.dumps([each._asdict() for each in found], ensure_ascii=False))
    else:
        console_for(as_json).print(table(found))


@app.command()
def merge(
    calculator: Annotated[str, Argument(help="Calculator: directory, hub name, or smollm2-calculator.")],
    out: Annotated[Path, Argument(help="Directory to write.")],
    model: Annotated[str | None, Option(help="Base model; default: the one that the calculator names.")] = None,
    dtype: Annotated[str | None, Option(help="float32, bfloat16 or float16; default: the base model's.")] = None,
) -> None:
    """Write base model and calculator as one checkpoint directory, for ani serve and vLLM."""
    from ani.calculator.serving import merge as run

    run(calculator, out, model=model, dtype=cast(Any, dtype))
    say_where("merged checkpoint", out)
