"""`ani eval --ray`: splits the questions of one evaluation over processes of a cluster.

Questions are shared, not tasks, as one task may take most of the time. A share is made of whole batches, so that its
answers are those of one process to the last bit, wherever the same batch gives the same numbers.
"""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from shutil import rmtree
from typing import Any, cast

from rich.console import Console

from ani.errors import InputError
from ani.evaluation.cluster import Cluster
from ani.evaluation.evaluate import (
    SHARE,
    answer,
    answers_file,
    ask,
    begin,
    collected,
    known_settings,
    load_tasks,
    read_answers,
    refuse_another_model,
    shown,
    task_settings,
)
from ani.evaluation.model_spec import ModelSpec
from ani.evaluation.task import Task
from ani.files import only_process_in
from ani.launch import ENDING, this_program
from ani.models import DTypeName, load_config, load_tokenizer
from ani.results.records import task_file


def evaluate_on(
    cluster: Cluster, tasks: Sequence[Task], spec: ModelSpec, out: Path, *, seed: int, console: Console
) -> dict[str, Any]:
    """Evaluate on a cluster. Each slot of the cluster runs this command for a share of the
    questions (`answer_share`) and writes the records to a folder of its own.

    Raises:
        InputError: As `evaluate`; or a node doesn't see `out`.
        ChildProcessError: A share failed; the answers of all shares are kept.
    """
    spec = spec._replace(dtype=cast(DTypeName, cluster.machine.dtype))
    loaded = load_tasks(tasks, load_tokenizer(spec.model), load_config(spec.model), seed)
    refuse_another_model(out, spec.facts)
    begun = (each for each in loaded if begin(each, out, seed, spec.facts))
    if any([len(collected(each, out)[1]) < len(each.questions) for each in begun]):
        if spec.backend == "vllm":
            spec.served(out)  # before several would merge at once
        names = [f"{number},{cluster.slots}" for number in range(cluster.slots)]
        command = [*this_program(), *sys.argv[1:], "--backend", spec.backend, "--share"]
        failed = []
        for name, code, said in cluster.carry_out({f"share {name}": [*command, name] for name in names}, out):
            sys.stderr.write(said)
            failed += [name] if code else []
        if failed:
            raise ChildProcessError(f"{', '.join(failed)} failed, as said above; start the same command again")

    results = shown(
        answer(loaded, partial(spec.load, tasks, out), out, seed=seed, console=console, facts=spec.facts), console
    )
    for folder in out.glob(f"{SHARE}*"):
        rmtree(folder)
    return results


def answer_share(
    tasks: Sequence[Task], spec: ModelSpec, out: Path, number: int, of: int, *, seed: int, console: Console
) -> None:
    """Answer share `number` (from 0) of the `of` shares of the questions. What is answered isn't asked again."""
    folder = out / f"{SHARE}{number}"
    with only_process_in(folder, wait=ENDING):  # who holds it lost its driver or node, and is about to end
        backend = spec.load(tasks, out)
        loaded = load_tasks(tasks, backend.tokenizer, backend.config, seed)
        for each in loaded:
            if known_settings(out).get(each.task.name) != task_settings(each, seed, spec.facts["fingerprint"]):
                raise InputError(f"{out} is for another model or other data than this node reads; share them on a disk")
            if task_file(out, each.task.name).is_file():
                continue
            known = read_answers(answers_file(out, each.task), each)
            part, found = collected(each, folder)
            batches = each.task.batches(backend, each.questions)[number::of]
            places = [place for batch in batches for place in batch if place not in known]
            ask(each, lambda: backend, part, found, places, console, f"share {number + 1}/{of}")
