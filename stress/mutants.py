"""Fifty planted faults, such as a refactoring may bring in, each with the tests that must fail: would they be found?

    python stress/mutants.py [--only NAME ...] [--jobs 2]

A fault is a change of a few lines in a copy of the package. All tests that are named must pass without any; then the
tests of each fault are run with it alone. Prints by which test it is caught; exits with 1 if one isn't, or if what it
changes doesn't stand exactly once in its file.
"""

import os

if __name__ == "__main__":  # and not in processes that it starts
    # As tests/fixtures.py has it, which comes too late for what is imported before; and no fault is in compiling.
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    os.environ |= {"TORCH_COMPILE_DISABLE": "1", "HYPOTHESIS_PROFILE": "hasty"}

import argparse
import re
import shutil
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import current_process, get_context
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
NEEDED = ("src", "tests", "docs", "recipes", "pyproject.toml")
LIMIT = 600
"""Seconds that the tests of one fault may take."""
PRELOADED = [
    "hypothesis",
    "peft",
    "pytest",
    "scipy.stats",
    "transformers.models.llama.modeling_llama",
    "transformers.trainer",
]
"""Of every process: imported once, then forked, as their imports take longer than most of the tests."""


class Mutant(NamedTuple):
    """A fault, and who must find it."""

    name: str
    file: str
    """In `src/ani`."""
    old: str
    """What stands there, once."""
    new: str
    tests: str
    """Files, folders or node ids of pytest, of which one must fail."""


MUTANTS = [
    Mutant(
        "a-sign-behind-a-percent",
        "numbers/grammar.py",
        'character.isdigit() or character == "%" or',
        "character.isdigit() or",
        "tests/numbers/test_grammar.py tests/numbers/test_scanner.py tests/invariants/test_scanner.py",
    ),
    Mutant(
        "ties-round-up",
        "encoders/fourier.py",
        'rest > "5" or (rest == "5" and kept[-1:] in tuple("13579"))',
        'rest >= "5"',
        "tests/encoders",
    ),
    Mutant(
        "decoding-forgets-lower-digits",
        "encoders/fourier.py",
        "below = (digit + below) / 10",
        "below = digit / 10",
        "tests/encoders",
    ),
    Mutant(
        "magnitudes-beyond-the-range",
        "encoders/magnitude.py",
        "np.minimum(np.abs(doubles), self._maximum)",
        "np.abs(doubles)",
        "tests/encoders",
    ),
    Mutant(
        "no-mark-of-an-endless-number",
        "encoders/pending.py",
        "= digit.endless",
        "= not digit.endless",
        "tests/encoders/test_pending.py",
    ),
    Mutant(
        "pending-before-literals",
        "encoders/pending.py",
        "torch.cat([features, self.pending.encode([each.pending for each in carried])], dim=1)",
        "torch.cat([self.pending.encode([each.pending for each in carried]), features], dim=1)",
        "tests/injection/test_pending.py",
    ),
    Mutant(
        "in-range-for-one-encoder",
        "encoders/settings.py",
        "return all(encoder.in_range",
        "return any(encoder.in_range",
        "tests/encoders/test_settings.py",
    ),
    Mutant(
        "the-gate-gives-e-no-gradient",
        "injection/module.py",
        "self.gate(hidden, embeddings, [",
        "self.gate(hidden, embeddings.detach(), [",
        "tests/injection/test_module.py",
    ),
    Mutant(
        "the-projection-starts-at-random",
        "injection/module.py",
        "nn.init.zeros_(self.projection.weight)",
        "nn.init.normal_(self.projection.weight, std=1e-3)",
        "tests/injection tests/invariants",
    ),
    Mutant(
        "a-labelled-first-token-weighs",
        "injection/labels.py",
        "(labels[:, 1:] != -100).sum() / num_items",
        "(labels != -100).sum() / num_items",
        "tests/injection/test_attach.py::test_num_items_in_batch_weighs_the_penalty",
    ),
    Mutant(
        "beams-keep-their-rows",
        "injection/history.py",
        "        super().reorder_cache(cast(Any, beam_idx))\n        self._take(beam_idx.tolist())",
        "        super().reorder_cache(cast(Any, beam_idx))",
        "tests/invariants/test_injection.py::test_beam_scores_are_log_probabilities",
    ),
    Mutant(
        "a-cropped-cache-keeps-its-end",
        "injection/history.py",
        "row[:length] if len(row) > length",
        "row[-length:] if len(row) > length",
        "tests/invariants/test_injection.py::test_crop",
    ),
    Mutant(
        "beams-mix-up-numbers",
        "injection/locate.py",
        ".repeat_interleave(repeats, dim=0) for field",
        ".repeat(repeats, *[1] * (getattr(self, field.name).ndim - 1)) for field",
        "tests/invariants/test_injection.py::test_beam_scores_are_log_probabilities",
    ),
    Mutant(
        "a-chunks-first-token-is-lost",
        "injection/locate.py",
        "for number in numbers if number.last_token >= start]",
        "for number in numbers if number.last_token > start]",
        "tests/invariants/test_injection.py::test_manual_loop_over_chunks",
    ),
    Mutant(
        "a-number-goes-on-after-forcing",
        "injection/forced.py",
        "row[self._goes_on] = -torch.inf",
        "pass",
        "tests/injection/test_forced.py",
    ),
    Mutant(
        "products-stand-in-both-splits",
        "data/arithmetic.py",
        'problem.operation in ("+", "*") and left > right',
        'problem.operation == "+" and left > right',
        "tests/data/test_arithmetic.py",
    ),
    Mutant(
        "five-and-five-point-nought",
        "data/diagnostic.py",
        'format(value.normalize(), "f")',
        'format(value, "f")',
        "tests/data",
    ),
    Mutant(
        "a-longer-carry-chain",
        "data/arithmetic.py",
        "a + b != 9 or run < chain",
        "a + b != 9 or run <= chain",
        "tests/data/test_arithmetic.py",
    ),
    Mutant(
        "roles-of-every-turn",
        "data/sources.py",
        'roles = record.get("roles") if turn == turns[-1] else None',
        'roles = record.get("roles")',
        "tests/data/test_sources.py",
    ),
    Mutant(
        "a-prompts-last-token-is-learnt",
        "data/collator.py",
        "([IGNORED] * prompt + row[prompt:]",
        "([IGNORED] * (prompt - 1) + row[prompt - 1 :]",
        "tests/data/test_collator.py",
    ),
    Mutant(
        "special-tokens-shift-roles",
        "data/collator.py",
        "    start += len(decoded) - len(prompt)  # special tokens in front\n",
        "",
        "tests/data/test_collator.py",
    ),
    Mutant(
        "trained-on-the-test-split",
        "data/kinds.py",
        'calculation_problems(**settings, split="train"',
        'calculation_problems(**settings, split="test"',
        "tests/training/test_examples.py",
    ),
    Mutant(
        "a-data-seed-of-zero-is-none",
        "training/examples.py",
        "recipe.seed if recipe.data_seed is None else recipe.data_seed",
        "recipe.data_seed or recipe.seed",
        "tests/training/test_examples.py",
    ),
    Mutant(
        "every-epoch-in-the-same-order",
        "training/examples.py",
        'Random(f"{self.seed} {self.epoch}")',
        'Random(f"{self.seed}")',
        "tests/training/test_examples.py",
    ),
    Mutant(
        "the-seed-comes-too-late",
        "training/run.py",
        "    set_seed(recipe.seed)\n",
        "",
        "tests/training/test_run.py::test_the_same_seed_gives_the_same_adapter",
    ),
    Mutant(
        "a-step-after-the-last",
        "training/checkpoints.py",
        "if state.global_step < (self.args",
        "if state.global_step <= (self.args",
        "tests/test_faults.py::test_a_killed_run_is_told_from_another",
    ),
    Mutant(
        "sums-are-lost-at-a-checkpoint",
        "training/checkpoints.py",
        "self.control.should_log |= self.control.should_save",
        "pass",
        "tests/training/test_checkpoints.py::test_a_resumed_run_is_the_unbroken_one",
    ),
    Mutant(
        "lora-decays",
        "training/trainer.py",
        'if group["params"]], weight_decay=0.0)',
        'if group["params"]])',
        "tests/training/test_trainer.py::test_learning_rates_are_separate",
    ),
    Mutant(
        "p-can-be-zero",
        "results/statistics.py",
        "(1 + int((np.array(others) <= 1e-12).sum())) / (1 + len(others))",
        "int((np.array(others) <= 1e-12).sum()) / len(others)",
        "tests/results",
    ),
    Mutant(
        "tails-are-swapped",
        "results/statistics.py",
        "hypot(a.value - a.low, b.value - b.low)",
        "hypot(a.high - a.value, b.high - b.value)",
        "tests/evaluation/test_summaries.py",
    ),
    Mutant(
        "groups-weigh-the-same",
        "results/statistics.py",
        "(counts @ sums) / (counts @ sizes)[:, None]",
        "(counts @ (sums / sizes[:, None])) / counts.sum(axis=1)[:, None]",
        "tests/results/test_statistics.py",
    ),
    Mutant(
        "a-fraction-rounds-inward",
        "results/statistics.py",
        "wilson_interval(ceil(successes), total)",
        "wilson_interval(round(successes), total)",
        "tests/results",
    ),
    Mutant(
        "a-row-for-every-seed",
        "results/scores.py",
        "questions = grouped(asked.values(), part)",
        "questions = grouped(runs[run], part)",
        "tests/results/test_scores.py",
    ),
    Mutant(
        "templates-are-drawn-apart",
        "evaluation/tasks/meant.py",
        "of_templates if asked[0].template else",
        "of_templates if False else",
        "tests/evaluation/tasks/test_meant.py",
    ),
    Mutant(
        "the-auc-of-the-first-seed",
        "evaluation/tasks/gates.py",
        "sum(aucs) / len(aucs)",
        "aucs[0]",
        "tests/evaluation/test_summaries.py",
    ),
    Mutant(
        "ties-count-whole",
        "results/statistics.py",
        "bisect_left(ordered, value) + bisect_right(ordered, value)",
        "2 * bisect_right(ordered, value)",
        "tests/evaluation/test_summaries.py",
    ),
    Mutant(
        "the-token-after-a-number-is-scored",
        "evaluation/tasks/language.py",
        " and not numeric[token - 1]",
        "",
        "tests/evaluation/tasks/test_language.py",
    ),
    Mutant(
        "a-merged-config-without-ani",
        "serving/checkpoint.py",
        "    setattr(config, SECTION, section)",
        "        setattr(config, SECTION, section)",
        "tests/serving/test_merge.py::test_without_a_module_it_is_an_ordinary_checkpoint",
    ),
    Mutant(
        "a-merged-module-in-16-bits",
        "serving/checkpoint.py",
        '{*(self._keep_in_fp32_modules_strict or ()), r"^ani\\."}',
        "{*(self._keep_in_fp32_modules_strict or ())}",
        "tests/serving/test_merge.py::test_dtype",
    ),
    Mutant(
        "lora-that-is-no-number",
        "injection/adapter.py",
        "merge_and_unload(safe_merge=True)",
        "merge_and_unload()",
        "tests/serving/test_merge.py::test_lora_that_is_no_number",
    ),
    Mutant(
        "a-detached-config-keeps-its-section",
        "serving/checkpoint.py",
        "        delattr(config, SECTION)\n",
        "",
        "tests/serving/test_merge.py::test_detached_it_is_one_of_its_family",
    ),
    Mutant(
        "a-number-of-an-earlier-request",
        "serving/scheduling.py",
        "self._prompts.get(request.request_id) if request.start else None",
        "self._prompts.get(request.request_id)",
        "tests/serving/test_scheduling.py::test_another_request_under_the_same_id_has_its_own_numbers",
    ),
    Mutant(
        "a-step-looks-ahead",
        "serving/scheduling.py",
        "locator.carriers(token_ids[:stop], start=start, reader=reader)",
        "locator.carriers(token_ids, start=start, reader=reader)",
        "tests/serving/test_scheduling.py::test_steps_find_what_whole_rows_hold[after]",
    ),
    Mutant(
        "what-lasts-is-not-forgotten",
        "serving/scheduling.py",
        "stop == start + 1 <= read.until",
        "stop == start + 1",
        "tests/serving/test_scheduling.py::test_prose_that_changes_nothing_of_what_is_pending_is_not_read",
    ),
    Mutant(
        "refused-drafts-stay-read",
        "serving/scheduling.py",
        "read if read and read.reader.tokens <= start else None",
        "read",
        "tests/serving/test_scheduling.py::test_steps_find_what_whole_rows_hold[pending]",
    ),
    Mutant(
        "a-point-begins-no-number",
        "calculator/reader/digits.py",
        'BEGINNINGS = frozenset(f"0123456789.{',
        'BEGINNINGS = frozenset(f"0123456789{',
        "tests/calculator/reader/test_pending.py::test_what_lasts_is_pending_until_a_piece_may_change_it",
    ),
    Mutant(
        "the-first-requests-offset",
        "serving/scheduling.py",
        "part.positions.numpy() + request.offset",
        "part.positions.numpy() + step[0].offset",
        "tests/serving/test_scheduling.py::test_steps_find_what_whole_rows_hold[terminal]",
    ),
    Mutant(
        "drafts-are-not-read",
        "serving/vllm.py",
        "starts, total = places[offsets[:count]], offsets[count]",
        "total = offsets[count]",
        "tests/serving/test_vllm.py::test_the_v2_runner_is_told_the_same",
    ),
    Mutant(
        "terminal-caches-prefixes",
        "serving/vllm_plugin.py",
        "if stored or config.cache_config.enable_prefix_caching:",
        "if stored:",
        "tests/serving/test_vllm.py::test_what_would_be_served_wrongly_is_refused",
    ),
    Mutant(
        "the-first-of-equal-stretches",
        "probing/selection.py",
        "max(reversed(runs), key=len)",
        "max(runs, key=len)",
        "tests/probing/test_selection.py",
    ),
    Mutant(
        "the-other-tail-of-the-margin",
        "probing/selection.py",
        "smooth_held_out, _CONFIDENCE, axis=0)",
        "smooth_held_out, 100 - _CONFIDENCE, axis=0)",
        "tests/probing/test_selection.py",
    ),
    Mutant(
        "held-out-values-are-learnt",
        "probing/probes.py",
        "known.append(~new_value & ~new_context)",
        "known.append(~new_context)",
        "tests/probing/test_probes.py",
    ),
    Mutant(
        "numbers-of-the-template-take-roles",
        "probing/states.py",
        "found = locator.scanner.scan(ids)[others:]",
        "found = locator.scanner.scan(ids)",
        "tests/probing/test_states.py",
    ),
]


class Ended(NamedTuple):
    """How a run of pytest ended."""

    code: int | None
    """None: it took too long."""
    said: str
    seconds: float


def mutated(mutant: Mutant) -> str:
    """The file with the fault; raises ValueError where the table is out of date."""
    file = ROOT / "src/ani" / mutant.file
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    if (count := text.count(mutant.old)) != 1:
        raise ValueError(f"{mutant.name}: {mutant.old!r} stands {count} times in src/ani/{mutant.file}, not once")
    return text.replace(mutant.old, mutant.new)


def run(folder: Path, tests: list[str]) -> Ended:
    """Run tests of a copy, up to the first that fails."""
    started = time.monotonic()
    process = CONTEXT.Process(target=_pytest, args=(folder, tests))
    process.start()
    process.join(LIMIT)
    process.kill()
    process.join()
    code = process.exitcode if process.exitcode is None or process.exitcode >= 0 else None
    said = (folder / process.name).read_text(encoding="utf-8", errors="replace")
    return Ended(code, said, time.monotonic() - started)


def _pytest(folder: Path, tests: list[str]) -> None:
    import pytest

    output = os.open(folder / current_process().name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(folder)
    sys.path[:0] = [str(folder), str(folder / "src")]
    os.environ["PYTHONPATH"] = str(folder / "src")
    sys.exit(pytest.main(["-x", "-q", "-rfE", "-p", "no:cacheprovider", *tests]))


def judged(mutant: Mutant, clean: Path) -> bool:
    """Whether the tests of a fault find it."""
    folder = clean.with_name(mutant.name)
    shutil.copytree(clean, folder, symlinks=True)
    (folder / "src/ani" / mutant.file).write_text(mutated(mutant), encoding="utf-8")
    code, said, seconds = run(folder, mutant.tests.split())
    shutil.rmtree(folder)
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", said, re.MULTILINE)
    if caught := code == 1 and failed is not None:
        verdict = f"caught by {failed[1]}"
    elif code == 0:
        verdict = f"NOT CAUGHT by {mutant.tests}"
    else:  # a module that can't be imported proves nothing
        verdict = f"NOT CAUGHT: pytest ended with {code}\n{said[-3000:]}"
    print(f"{mutant.name:42}{seconds:6.1f} s  {verdict}", flush=True)
    return caught


def main() -> int:
    """Make a copy, make each fault in a copy of it, run its tests, count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=[mutant.name for mutant in MUTANTS])
    parser.add_argument("--jobs", type=int, default=2, help="processes side by side")
    options = parser.parse_args()
    begin = time.monotonic()
    chosen = [mutant for mutant in MUTANTS if not options.only or mutant.name in options.only]
    for mutant in chosen:
        mutated(mutant)
    named = {test for mutant in chosen for test in mutant.tests.split()}
    tests = sorted(test for test in named if not any(test.startswith((f"{other}/", f"{other}::")) for other in named))
    with tempfile.TemporaryDirectory(prefix="ani-mutants-") as root, ThreadPoolExecutor(options.jobs) as pool:
        clean = Path(root) / "clean"
        for name in NEEDED:
            (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, clean / name)
        for code, said, _ in pool.map(run, [clean] * len(tests), [[test] for test in tests]):
            if code != 0:
                print(f"without a fault pytest ended with {code}\n{said[-3000:]}")
                return 1
        print(f"{'without a fault':42}{time.monotonic() - begin:6.1f} s  all tests pass", flush=True)
        caught = sum(pool.map(judged, chosen, [clean] * len(chosen)))
    print(f"{caught} of {len(chosen)} caught in {time.monotonic() - begin:.0f} s")
    return 0 if caught == len(chosen) else 1


CONTEXT = get_context("forkserver")

if __name__ == "__main__":
    CONTEXT.set_forkserver_preload(PRELOADED)
    sys.exit(main())
