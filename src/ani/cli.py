"""The command line: parses, calls one function, prints."""

import json
import os
import sys
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import typer
from rich.console import Console
from rich.markup import escape
from typer import Argument, Option
from typer.core import TyperCommand

from ani import terminal
from ani.data import MAGPIE, OPENMATH
from ani.errors import InputError
from ani.files import only_process_in
from ani.injection.methods import DEFAULT_POLICY, Policy
from ani.terminal import chosen, console, console_for, integers, name_and_value, say_where

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",  # joins the lines of a docstring
    context_settings={"help_option_names": ["-h", "--help"]},
    help="ANI, Adaptive Numerical Injection: exact numbers for language models, where they are quantities.",
)

if find_spec("ani.calculator") is not None:
    from ani.calculator.commands import app as calculator

    app.add_typer(calculator, name="calculator")


def _need_one_process(command: str) -> None:
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise InputError(f"ani {command} runs in one process; start it without torchrun or accelerate launch")


def _choose_device(device: str) -> None:
    if device == "cpu":  # here and in all processes that start here, before torch looks for GPUs
        os.environ |= {"ANI_DEVICE": "cpu", "CUDA_VISIBLE_DEVICES": ""}


def _recipe(path: Path | None) -> Path | None:
    """The recipe's file: the path, or else the package's recipe of this name (`small/train`, `recipes/demo.yaml`)."""
    if path is None or os.path.exists(path):  # pathlib raises where a name is too long
        return path
    packaged = Path(__file__).with_name("recipes") / str(path).removeprefix("recipes/")
    return next((file for file in (packaged, Path(f"{packaged}.yaml")) if os.path.isfile(file)), path)


BaseOption = Annotated[
    str | None, Option("--model", help="Directory, NAME or NAME@REVISION. Default: the adapter's base, or smollm2.")
]
AdapterOption = Annotated[str | None, Option("--adapter", help="Adapter directory or hub name (or NAME@REVISION).")]
DeviceOption = Annotated[
    Literal["auto", "cpu"], Option("--device", callback=_choose_device, help="auto: a GPU, where torch can use one.")
]
RayOption = Annotated[
    str | None, Option(help="Ray cluster for the runs: its address, auto (RAY_ADDRESS or this machine's), or local.")
]
GpusOption = Annotated[
    int | None, Option("--gpus-per-run", min=1, help="GPUs per run with --ray. Default: 1; with --device cpu: 0.")
]
ChatOption = Annotated[bool, Option("--chat", help="Read each text as a user's message, in the model's chat template.")]
JsonOption = Annotated[bool, Option("--json", help="Print JSON for scripts, and no progress.")]
Overrides = Annotated[list[str] | None, Argument(help="Changes to the recipe, such as training.steps=100.")]


@app.command()
def demo(
    overrides: Overrides = None,
    out: Annotated[Path | None, Option(help="Directory for results; default runs/demo.")] = None,
    device: DeviceOption = "auto",
) -> None:
    """Train ANI and LoRA alone on the embedded model, compare them in a table and a report, and show the calculator."""
    from ani.compare.plan import DEMO

    _need_one_process("demo")
    named = any(each.startswith("ani.layer=") and each != "ani.layer=auto" for each in overrides or ())
    changes = ["probe=false"] if named else []  # the layer is not searched for
    changes += [] if out is None else [f"output={json.dumps(str(out))}"]
    changes += [f"overrides={json.dumps(list(overrides))}"] if overrides else []
    report = _compared(DEMO, changes)
    console.print()
    say_where("report", report.resolve(), " (open it in a browser)")
    if find_spec("ani.calculator") is not None:
        from ani.calculator.demo import show_chats

        show_chats(console)


@app.command()
def inspect(
    text: Annotated[str, Argument(help='For example "Room 505 has a capacity of 10 people".')],
    model: BaseOption = None,
    adapter: AdapterOption = None,
    chat: ChatOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show which numbers of a text the gate injects. Default adapter: the merged model's, or the shipped one of
    smollm2."""
    from ani.evaluation.engines import TransformersEngine
    from ani.evaluation.model_spec import adapted_model, model_and_adapter
    from ani.injection.decisions import decisions_table, marked_text

    backend = TransformersEngine(*adapted_model(*model_and_adapter(model, adapter)))
    (numbers,) = backend.decide([text], [] if chat else None)
    if as_json:
        found = [number.model_dump(mode="json", exclude_unset=True) for number in numbers]
        print(json.dumps({"text": text, "numbers": found}, ensure_ascii=False))
    else:
        console.print(marked_text(text, numbers))
        console.print(decisions_table(numbers))


@app.command()
def playground(
    model: BaseOption = None,
    adapter: AdapterOption = None,
    host: Annotated[str, Option(help="Address to listen on; 0.0.0.0: all networks.")] = "127.0.0.1",
    port: Annotated[int, Option(min=1, max=65535)] = 7860,
) -> None:
    """Serve a web page: the gate of every number, opened or closed at will, and answers with and without ANI."""
    from ani.evaluation.model_spec import adapted_model, model_and_adapter
    from ani.playground import build, launch

    page = build(*adapted_model(*model_and_adapter(model, adapter)))
    url = launch(page, host, port)
    say_where("playground", url, " (Ctrl-C ends it)")
    page.block_thread()


@app.command()
def probe(
    out: Annotated[Path, Option(help="Directory for the result files.")],
    model: Annotated[str, Option(help="Directory, hub name (or NAME@REVISION), or smollm2 (embedded).")] = "smollm2",
    data: Annotated[str, Option(help="Labelled sentences: file, directory, or diagnostic (ours).")] = "diagnostic",
    held_out: Annotated[
        str | None, Option(help="Other labelled sentences to test on. Default: hold out each domain of --data in turn.")
    ] = None,
    sentences: Annotated[int | None, Option(min=1, help="Maximum number of sentences (of diagnostic: 4000).")] = None,
    policy: Annotated[Policy, Option(help="Injection policy of the adapter to be trained.")] = DEFAULT_POLICY,
    layers: Annotated[str | None, Option(help="Layers to probe, such as 0,4,9. Default: all.")] = None,
    chat: ChatOption = False,
    seed: Annotated[int, Option(help="Seed of sentences, folds and bootstrap.")] = 0,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Probe every layer for the roles of numbers and choose the injection layer."""
    from ani.devices import where
    from ani.models import load_model, load_tokenizer
    from ani.probing.curve import LayerSelection, layers_table
    from ani.probing.run import probe as run
    from ani.results.records import SELECTION, read_object
    from ani.results.tables import Fitted
    from ani.revisions import pinned

    _need_one_process("probe")
    wanted = None if layers is None else integers("--layers", layers)
    shown = console_for(as_json)
    shown.print(where(), highlight=False)
    with terminal.resumable("start the same command again"), only_process_in(out):
        sets: dict[str, Any] = {"data": data, "held_out": held_out, "sentences": sentences, "seed": seed}
        model = pinned(model)
        reading: dict[str, Any] = {"policy": policy, "chat": chat, "layers": wanted, "facts": {"model": model}}
        selection = run(load_model(model), load_tokenizer(model), out, **sets, **reading, console=shown)
    shown.print(Fitted(layers_table(selection.curve, read_object(out / SELECTION, LayerSelection))))
    shown.print(selection.reason, highlight=False)
    if as_json:
        print((out / SELECTION).read_text(encoding="utf-8"), end="")


@app.command()
def train(
    recipe: Annotated[Path | None, Argument(callback=_recipe, help="Recipe file or name, such as small/train.")] = None,
    overrides: Overrides = None,
    resume: Annotated[Path | None, Option(help="Continue the interrupted run in this directory.")] = None,
    dry: Annotated[bool, Option("--dry-run", help="Only check recipe and data; load no weights.")] = False,
    device: DeviceOption = "auto",
) -> None:
    """Train an adapter by a recipe. On several GPUs: torchrun --nproc-per-node gpu -m ani train RECIPE, or accelerate
    launch -m ani train RECIPE."""
    from accelerate import PartialState

    from ani.devices import where
    from ani.terminal import training_lines
    from ani.training.checkpoints import ADAPTER
    from ani.training.recipe import load_recipe
    from ani.training.run import dry_run, how_to_go_on, resume_recipe
    from ani.training.run import train as run

    if (recipe is None) == (resume is None):
        raise InputError("give either a recipe or --resume DIR")
    plan = resume_recipe(resume) if resume is not None else load_recipe(recipe or "", overrides or ())
    if dry:
        dry_run(plan, console)
        return
    console.print(where(plan.dtype), highlight=False)
    with terminal.resumable(partial(how_to_go_on, plan.output)):
        run(plan, resume=resume is not None, on_log=training_lines(console), console=console)
    say_where("adapter", Path(plan.output) / ADAPTER)
    PartialState().destroy_process_group()


@app.command()
def compare(
    recipe: Annotated[Path, Argument(callback=_recipe, help="Recipe file, or a name such as small/methods.")],
    overrides: Overrides = None,
    ray: RayOption = None,
    gpus: GpusOption = None,
    run: Annotated[str | None, Option(hidden=True)] = None,  # the one that this process carries out
    device: DeviceOption = "auto",
) -> None:
    """Train and evaluate variants of a recipe on the same data, seeds and tasks. The same command continues an
    interrupted comparison."""
    from ani.compare.runs import carry_out_one

    if run is not None:
        carry_out_one(recipe, overrides or (), run, console)
        return
    if ray is None:  # Ray's launcher starts one process per node, one of which continues
        _need_one_process("compare")
    say_where("report", _compared(recipe, overrides or (), ray, gpus).resolve())


def _compared(recipe: Path, overrides: Sequence[str], ray: str | None = None, gpus: int | None = None) -> Path:
    from ani.compare.cluster import on_ray
    from ani.compare.runs import in_own_processes, on_cluster, run_comparison

    arguments = [str(recipe), *overrides]
    with terminal.resumable("continue with the same command"), on_ray(ray, gpus) as cluster:
        start = in_own_processes(arguments) if cluster is None else on_cluster(arguments, cluster)
        return run_comparison(recipe, console, overrides, start=start, machine=cluster and cluster.machine)


class _EvalCommand(TyperCommand):
    """The command `eval`, whose help names the registered tasks; the registry is imported only for that help."""

    def format_help(self, context: Any, formatter: Any) -> None:
        from ani.evaluation.tasks import evaluated_tasks

        tasks: Any = next(each for each in self.params if each.name == "tasks")
        tasks.help = f"Comma-separated: {', '.join(evaluated_tasks())}."
        super().format_help(context, formatter)


@app.command("eval", cls=_EvalCommand)
def evaluate(
    out: Annotated[Path, Option(help="Directory for the result files.")],
    model: BaseOption = None,
    adapter: AdapterOption = None,
    calculator: Annotated[
        str | None, Option(help="Directory, hub name, smollm2-calculator, or open (it writes every exact value).")
    ] = None,
    tasks: Annotated[str, Option(help="Comma-separated names of tasks.")] = "arithmetic",
    data: Annotated[
        list[str] | None, Option(help="TASK=PATH, TASK=NAME or TASK=NAME@REVISION (of the hub): other data of a task.")
    ] = None,
    limit: Annotated[int | None, Option(min=1, help="Maximum questions per task (arithmetic: per length).")] = None,
    operations: Annotated[str, Option(help="Arithmetic: addition,subtraction,multiplication,division.")] = "addition",
    max_new_tokens: Annotated[
        int | None, Option(min=1, help="Cut each answer off after this many tokens. Default: gsm8k 512, math 2048.")
    ] = None,
    batch_size: Annotated[
        int | None, Option(min=1, help="Prompts per forward pass. Default: by task (benchmarks: 64; on a CPU 8).")
    ] = None,
    texts: Annotated[
        list[str] | None,
        Option(help="Texts for gates: diagnostic (default), natural, finer, gsm8k, math, mmlu, mmlu=PATH or a file."),
    ] = None,
    field: Annotated[list[str] | None, Option(help="Key of the text in JSONL files of --texts. Default: text.")] = None,
    group: Annotated[str | None, Option(help="Key of the group in these records: one table row per group.")] = None,
    chat: ChatOption = False,
    seed: Annotated[int, Option(help="Seed that draws the questions.")] = 0,
    backend: Annotated[
        Literal["auto", "transformers", "vllm"],
        Option(
            help="auto: the backend of the results in --out; without results vllm for benchmarks, if it is installed, "
            "uses a GPU and can serve the model. vllm merges an adapter first, and can't read gates."
        ),
    ] = "auto",
    vllm: Annotated[list[str] | None, Option(help="Setting of vLLM, such as max_model_len=2048.")] = None,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Evaluate a model, with or without an adapter: a JSON line per question, and tables. The same command continues an
    interrupted evaluation."""
    from ani.data.arithmetic import SYMBOLS
    from ani.devices import where
    from ani.evaluation.engines import Processor, VllmSettings
    from ani.evaluation.evaluate import evaluate as run
    from ani.evaluation.evaluate import with_options
    from ani.evaluation.model_spec import ModelSpec, model_for
    from ani.evaluation.tasks import evaluated_tasks
    from ani.revisions import pinned
    from ani.settings import override, validated

    _need_one_process("eval")
    names, given = chosen("task", tasks, evaluated_tasks()), dict(name_and_value("--data", each) for each in data or ())
    options: dict[str, Any] = {"limit": limit, "max_new_tokens": max_new_tokens, "group": group, "chat": chat}
    options |= {"texts": texts or None, "field": field or None, "operations": chosen("operation", operations, SYMBOLS)}
    asked = with_options(names, given, **options)
    engine: dict[str, Any] = {}
    override(engine, vllm or ())
    settings = validated(VllmSettings, engine, "--vllm")
    processors: tuple[Processor, ...] = ()
    if calculator is not None:
        from ani.calculator.calculator import processor

        processors = (processor(calculator),)
    adapter = None if adapter is None else pinned(adapter)
    spec = ModelSpec(pinned(model_for(model, adapter)), adapter, backend, batch_size, processors, vllm=settings)
    spec.resolved(asked, out)  # raises before anything is written
    shown = console_for(as_json)
    with terminal.resumable("start the same command again"), only_process_in(out):
        shown.print(where(), highlight=False)
        try:
            used, loaded = spec.start(asked, out, shown)
            results = run(asked, loaded, out, seed=seed, console=shown, facts=used.facts)
        except InputError:
            spec.clear(out)
            raise
        spec.clear(out)
    if as_json:
        print(json.dumps(results, ensure_ascii=False))


@app.command()
def diff(
    run: Annotated[Path, Argument(help="Result folder.")],
    baseline: Annotated[Path, Argument(help="Result folder to compare it to.")],
    as_json: JsonOption = False,
) -> None:
    """Compare two result folders problem by problem: differences with 95% intervals and p, and the number of problems
    that only one of them solves."""
    from ani.evaluation.diff import backends_differ, compare_folders
    from ani.results.tables import Fitted

    tables, results = compare_folders(run, baseline)
    if note := backends_differ(run, baseline):
        Console(stderr=True).print(f"[yellow]note:[/yellow] {escape(note)}", soft_wrap=True, highlight=False)
    for table in tables:
        console_for(as_json).print(Fitted(table))
    if as_json:
        print(json.dumps(results, ensure_ascii=False))


@app.command()
def report(folder: Annotated[Path, Argument(help="Directory with result files.")]) -> None:
    """Write one self-contained HTML page from the result files of a directory."""
    from ani.report import build_report

    say_where("report", build_report(folder).resolve())


@app.command("paper-set")
def paper_set(
    out: Annotated[Path, Argument(help="Directory to write.")],
    quantitative: Annotated[str, Option(help="Maths texts: hub name (or NAME@REVISION), or path.")] = OPENMATH,
    nominal: Annotated[str, Option(help="Chat texts, named in the same way; diagnostic: our own sentences.")] = MAGPIE,
    count: Annotated[int, Option(min=1, help="Number of texts of each kind; the paper has 10000.")] = 10_000,
    numbers: Annotated[
        int | None, Option(min=0, help="Minimum count of numbers per kind of question. Default: --count; 0: none.")
    ] = None,
    seed: Annotated[int, Option(help="Seed that draws the texts.")] = 0,
) -> None:
    """Build the paper's labelled texts: maths texts, with quantities, and chats, with names; and a data card."""
    from ani.data.openmath_magpie import build_openmath_magpie
    from ani.terminal import counting

    with terminal.resumable("start the same command again"), counting(console, "texts", 2 * count) as kept:
        sources = {"quantitative": quantitative, "nominal": nominal}
        build_openmath_magpie(out, **sources, count=count, numbers=numbers, seed=seed, on_kept=kept)
    say_where("labelled texts", out)


@app.command()
def merge(
    adapter: Annotated[str, Argument(help="Adapter directory or hub name.")],
    out: Annotated[Path, Argument(help="Directory to write.")],
    model: Annotated[str | None, Option(help="Base model (or NAME@REVISION). Default: the adapter's base.")] = None,
    dtype: Annotated[str | None, Option(help="float32, bfloat16 or float16; default: the base model's.")] = None,
    max_shard_size: Annotated[str, Option(help="Maximum size of a weights file.")] = "5GB",
) -> None:
    """Write base model and adapter as one checkpoint directory."""
    from ani.serving.merge import merge as run

    _need_one_process("merge")
    with terminal.resumable("start the same command again"):
        run(adapter, out, model=model, dtype=cast(Any, dtype), max_shard_size=max_shard_size)
    say_where("merged checkpoint", out)


@app.command()
def push(
    adapter: Annotated[Path, Argument(help="Adapter directory.")],
    name: Annotated[str, Argument(help="Name on the Hugging Face hub: me/my-adapter, or my-adapter.")],
    results: Annotated[Path | None, Option(help="Result folder, whose tables go into the model card.")] = None,
    licence: Annotated[str | None, Option("--license", help="Licence in the model card, such as apache-2.0.")] = None,
) -> None:
    """Put an adapter on the Hugging Face hub, with a model card; --adapter and load_adapter then take its name."""
    from ani.evaluation.evaluate import results_markdown
    from ani.hub import push_adapter
    from ani.injection.adapter import Adapter

    _need_one_process("push")
    tables = None if results is None else results_markdown(results)
    say_where("adapter", push_adapter(Adapter.read(adapter).path, name, results=tables, licence=licence))


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def serve(
    context: typer.Context,
    checkpoint: Annotated[str, Argument(help="Merged checkpoint: directory or hub name.")],
) -> None:
    """Serve a merged checkpoint with vLLM's OpenAI-compatible server, on 127.0.0.1; options are vLLM's.

    Prefix caching is off if the checkpoint's policy doesn't allow it. All options: vllm serve --help=all. For example:
    ani serve merged --port 8000 --max-model-len 4096
    """
    from ani.serving.server import serve_command

    command = serve_command(checkpoint, context.args)
    console.print(escape(" ".join(command[1:])), soft_wrap=True, highlight=False)
    sys.stdout.flush()
    os.execv(command[0], command)


@app.command()
def env(as_json: JsonOption = False) -> None:
    """Print versions and hardware, for bug reports."""
    from ani.provenance import environment

    facts = environment()
    for name, value in facts.items():
        console_for(as_json).print(f"{name}: {value if value is not None else 'none'}", highlight=False)
    if as_json:
        print(json.dumps(facts))


def main() -> None:
    """Entry point. Exit codes: 0 done, 1 failed, 2 bad input, 130 interrupted, 143 ended by SIGTERM."""
    terminal.run(app)
