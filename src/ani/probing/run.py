"""`ani.select_layer` and `ani probe`: runs the probes on labelled sentences and chooses the layer."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from numpy.typing import NDArray
from rich.console import Console
from torch import nn
from transformers import PreTrainedTokenizerBase

from ani.data.diagnostic import DiagnosticSentence, diagnostic_sentences
from ani.data.labelled_sentences import read_labelled
from ani.injection.methods import DEFAULT_POLICY, Policy
from ani.injection.model_parts import base_model, decoder_layers
from ani.probing.curve import LayerSelection, ProbedNumber
from ani.probing.probes import ProbeResults, probe_layers
from ani.probing.selection import choose_layer
from ani.probing.states import number_states
from ani.provenance import provenance
from ani.results.records import LAYERS, RUN, SELECTION, write_json, write_records
from ani.terminal import SILENT, counting

DIAGNOSTIC = "diagnostic"
"""Name of our own sentences, in place of a file's."""
SENTENCES = 4000
"""Default number of our own sentences."""

RANDOM_SPLIT = "probe_random_split.jsonl"
HELD_OUT = "probe_held_out.jsonl"


def select_layer(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    diagnostic: Sequence[DiagnosticSentence] | None = None,
    *,
    held_out: Sequence[DiagnosticSentence] | None = None,
    policy: Policy = DEFAULT_POLICY,
    chat: bool = False,
    layers: Sequence[int] | None = None,
    seed: int = 0,
    console: Console = SILENT,
) -> LayerSelection:
    """Probe every layer for the roles of numbers and choose the one to inject at, by the rule of `choose_layer`.

    Args:
        model: A causal language model without ANI; it is not changed.
        tokenizer: The model's tokenizer.
        diagnostic: Sentences with the roles of their numbers; None: 4,000 of our own.
        held_out: Sentences to test on; None: `diagnostic` itself, domain by domain. Needed where all numbers of a
            domain have one role.
        policy: Policy of the adapter to be trained; probes read a number at the token where the policy injects it.
        chat: Read each sentence as a user's message in the model's chat template, not as a prompt.
        layers: Layers to probe, 0 (the embedding output) to the number of decoder layers; None: all.
        seed: Seed of sentences, folds, shuffled roles and bootstrap.
        console: Console for progress.

    Raises:
        InputError: ANI is attached, a layer does not exist, there are too few numbers, or a role is missing.
    """
    sets = [_own_sentences(SENTENCES, seed) if diagnostic is None else diagnostic]
    if held_out is not None:
        sets.append(held_out)
    reading = {"policy": policy, "chat": chat, "layers": layers}
    return _probe(model, tokenizer, sets, console, seed, **reading)[0]


def probe(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    out: Path,
    *,
    data: str | None = None,
    held_out: str | None = None,
    sentences: int | None = None,
    policy: Policy = DEFAULT_POLICY,
    chat: bool = False,
    layers: Sequence[int] | None = None,
    seed: int = 0,
    console: Console = SILENT,
    facts: Mapping[str, Any] | None = None,
) -> LayerSelection:
    """Run `select_layer` on data from files, and write its results to files.

    Args:
        model, tokenizer, policy, chat, layers, seed, console: Arguments of `select_layer`.
        out: Directory for the curve (`layers.jsonl`), one record per number (`probe_random_split.jsonl`,
            `probe_held_out.jsonl`), the choice (`selection.json`) and `run.json`; files of an earlier run are replaced.
        data: A file or directory of labelled sentences, or `diagnostic` for our own; None: our own.
        held_out: A file or directory of sentences to test on; None: `data` itself, domain by domain.
        sentences: Maximum number of sentences of each set; None: all of a file, 4,000 of our own.
        facts: Facts about the model for `run.json`.

    Raises:
        InputError: As `select_layer`; or a file is missing or malformed.
    """
    data = data or DIAGNOSTIC
    sets = [_sentences(name, sentences, seed) for name in (data, held_out) if name is not None]
    reading = {"policy": policy, "chat": chat, "layers": layers}
    selection, results = _probe(model, tokenizer, sets, console, seed, **reading)
    # After the probing, so that bad input costs no earlier result; before the writes, so that no two runs are mixed.
    for name in (LAYERS, RANDOM_SPLIT, HELD_OUT, SELECTION, RUN):
        (out / name).unlink(missing_ok=True)
    write_records(out / LAYERS, selection.curve)
    right = {"random_split": results.random_split.astype(int), "control": results.control.astype(int)}
    write_records(out / RANDOM_SPLIT, _records(results.numbers, seen=results.seen, **right))
    write_records(out / HELD_OUT, _records(results.held_out_numbers, held_out=results.held_out.astype(int)))
    settings = {"data": data, "held_out": held_out, "sentences": len(sets[0]), "policy": policy, "seed": seed}
    settings |= {"chat": True} if chat else {}
    write_json(out / RUN, {"title": "ani probe", "settings": settings, **(facts or {}), **provenance()})
    counts = {"numbers": len(results.numbers), "held_out_numbers": len(results.held_out_numbers)}
    # Written last, because training continues from it.
    write_json(out / SELECTION, {**selection.model_dump(mode="json"), **counts, **settings})
    return selection


def _own_sentences(count: int, seed: int) -> list[DiagnosticSentence]:
    held_out = count // 3  # the probes are tested on their values
    known = diagnostic_sentences(count - held_out, split="train", seed=seed)
    return known + diagnostic_sentences(held_out, split="test", seed=seed)


def _sentences(name: str, count: int | None, seed: int) -> list[DiagnosticSentence]:
    if name == DIAGNOSTIC:
        return _own_sentences(count or SENTENCES, seed)
    sentences = read_labelled(name)
    if count is None or count >= len(sentences):
        return sentences
    kept = sorted(Random(f"sentences {seed}").sample(range(len(sentences)), count))
    return [sentences[index] for index in kept]


def _probe(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    sets: Sequence[Sequence[DiagnosticSentence]],
    console: Console,
    seed: int,
    **reading: Any,
) -> tuple[LayerSelection, ProbeResults]:
    """Read the states of the sets, probe and choose; `reading` are further arguments of `number_states`."""
    base = base_model(model)
    with counting(console, "sentences read", sum(map(len, sets))) as count:
        states = [number_states(base, tokenizer, each, seed=seed, on_sentence=count, **reading) for each in sets]
    with counting(console, "layers probed", len(states[0].layers)) as count:
        device = base.device if base.device.type == "cuda" else "cpu"
        results = probe_layers(*states, seed=seed, device=device, on_layer=count)
    return choose_layer(results, range(len(decoder_layers(base))), seed=seed), results


def _records(numbers: Sequence[ProbedNumber], **found: NDArray[Any]) -> Iterator[ProbedNumber]:
    """The numbers, each with its row of every array."""
    for index, number in enumerate(numbers):
        yield number.model_copy(update={name: rows[index].tolist() for name, rows in found.items()})
