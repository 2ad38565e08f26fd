import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ani import InputError, cli
from ani.injection.adapter import load_adapter
from ani.launch import ONE_PROCESS, Processes, launch
from ani.models import load_model, load_tokenizer
from ani.results.decisions import DecidedText
from ani.results.files import read_records
from ani.tasks import TASKS
from ani.tasks.answering import Answerer
from ani.tasks.folders import evaluate
from ani.tasks.gate_shares import GateShares
from ani.tasks.gating import Gating
from ani.tasks.lm_eval.kept import KeptAnswers
from tests.json_lines import write_lines
from tests.processes import forked, together
from tests.tasks.test_benchmarks import ROWS
from tests.tasks.test_finer import NOTES, SEGMENTS

Captured = pytest.CaptureFixture[str]
Evaluate = Callable[..., Any]
ASKED = ("arithmetic", "gsm8k", "math", "mmlu", "gating", "routing", "finer")


@pytest.fixture
def answerer(chat_model: Path, tiny_adapter: Path) -> Answerer:
    model, tokenizer = load_model(str(chat_model), dtype="float32", device="cpu"), load_tokenizer(str(chat_model))
    return Answerer(load_adapter(model, tokenizer, str(tiny_adapter)), tokenizer, batch_size=2)


@pytest.fixture
def data(tmp_path: Path) -> dict[str, str]:
    finer = [{**row, "tokens": [*row["tokens"][:-1], f"word{i}"]} for row in (NOTES, SEGMENTS) for i in range(3)]
    rows = {**ROWS, "finer": finer}
    return {name: str(write_lines(tmp_path / f"{name}.jsonl", *rows[name])) for name in rows}


@pytest.fixture
def evaluated(answerer: Answerer, data: dict[str, str]) -> Evaluate:
    def run(out: Path, *names: str, batch_size: int = 2, limit: int | None = None, **settings: Any) -> Any:
        tasks = [TASKS[name].asked(limit=limit, data=data.get(name), max_new_tokens=3) for name in names]
        settings = {"console": Console(quiet=True), **settings}
        return evaluate(tasks, answerer._replace(batch_size=batch_size), out, **settings)

    return run


def files(folder: Path) -> dict[str, str]:
    """All but what tells when and by which command."""
    found = {path.name: path.read_text() for path in folder.iterdir()}
    run = json.loads(found.pop("run.json"))
    return {**found, "run": json.dumps({key: run[key] for key in run if key not in ("date", "command")})}


@pytest.mark.parametrize("count", [1, 2, 3])
def test_items_are_dealt_out_in_whole_batches(count: int) -> None:
    shares = [Processes(rank, count).share(list(range(11)), 2) for rank in range(count)]
    dealt = [batch for share in shares for batch in share]
    assert sorted(dealt) == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10]]
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_two_processes_leave_what_one_leaves(evaluated: Evaluate, tmp_path: Path) -> None:
    # 3 batches of arithmetic and gsm8k, 2 of routing, 1 of math, which leaves a process without work.
    one = evaluated(tmp_path / "one", *ASKED, limit=17)

    def work(processes: Processes) -> None:
        out = Console(file=(tmp_path / f"{processes.rank}.txt").open("w"))
        assert evaluated(tmp_path / "two", *ASKED, limit=17, processes=processes, console=out) == one

    assert together(2, work) == [0, 0]
    assert files(tmp_path / "two") == files(tmp_path / "one")
    assert (tmp_path / "1.txt").read_text() == ""
    counts = {"arithmetic, problems": 102, "gsm8k, questions": 5, "routing, queries": 17, "finer, sentences": 6}
    for what, count in counts.items():
        assert f"{what}: {count} in " in (tmp_path / "0.txt").read_text()


def test_fewer_items_than_processes(answerer: Answerer, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Room 505 holds 10\nnone\n")
    tasks = [GateShares(texts=[str(tmp_path / "a.txt")])]

    def shares(out: Path, processes: Processes = ONE_PROCESS) -> Any:
        return evaluate(tasks, answerer, out, console=Console(quiet=True), processes=processes)["gate-shares"]

    (one,) = shares(tmp_path / "one")
    assert (one["texts"], one["numbers"]["total"], one["texts_open"]["total"]) == (2, 2, 1)
    assert together(3, lambda processes: shares(tmp_path / "three", processes)) == [0, 0, 0]
    assert files(tmp_path / "three") == files(tmp_path / "one")
    texts = read_records(tmp_path / "three" / "gate-shares.jsonl", DecidedText)
    assert [text.text for text in texts] == ["Room 505 holds 10", "none"]


def test_the_main_process_counts_for_all() -> None:
    def work(processes: Processes) -> None:
        shown: list[int] = []
        add = processes.counted(shown.append)
        add(processes.rank + 1)
        processes.gathered(None)
        add(10)
        processes.from_main(lambda: None)
        if processes.main:
            add(0)
        assert sum(shown) == (1 + 2 + 3 + 3 * 10 if processes.main else 0)

    assert together(3, work) == [0] * 3


@pytest.mark.parametrize("name", ["gsm8k", "mmlu"])
def test_killed_and_gone_on_with_another_number_of_processes(
    name: str, evaluated: Evaluate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluated(tmp_path / "whole", name, batch_size=1)
    asked = len(read_records(tmp_path / "whole" / f"{name}.jsonl", TASKS[name].record))
    plain, answered = KeptAnswers.add_partial, 0

    def run(count: int, stop_after: int | None) -> int:
        """How many answers are given."""

        def add_partial(self: Any, *args: Any) -> None:
            nonlocal answered
            plain(self, *args)
            answered += 1
            if answered == stop_after:
                os.kill(os.getpid(), signal.SIGKILL)

        def work(processes: Processes) -> None:
            evaluated(tmp_path / "out", name, batch_size=1, processes=processes)
            (tmp_path / f"{count}.{processes.rank}").write_text(str(answered))

        monkeypatch.setattr(KeptAnswers, "add_partial", add_partial)
        codes = together(count, work)
        if stop_after is not None:
            assert codes == [-signal.SIGKILL] * count
            return count * stop_after
        assert codes == [0] * count
        return sum(int((tmp_path / f"{count}.{rank}").read_text()) for rank in range(count))

    each = 1 if name == "gsm8k" else 4
    given = run(2, each)
    assert {path.name for path in (tmp_path / "out").glob(f"{name}*")} == {f"{name}.answers", f"{name}.answers.1"}
    with (tmp_path / "out" / f"{name}.answers.1").open("a") as file:
        file.write('["torn')
    given += run(1, each)
    assert {path.name for path in (tmp_path / "out").glob(f"{name}*")} == {f"{name}.answers"}
    given += run(3, None)
    assert given == asked * each
    assert files(tmp_path / "out") == files(tmp_path / "whole")


@pytest.mark.parametrize("ranks", ["1", "01"])
def test_bad_input_is_told_once(
    ranks: str, chat_model: Path, tiny_adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Captured
) -> None:
    plain = Gating.answer

    def refusing(*args: Any) -> Any:
        if os.environ["RANK"] in ranks:
            while not (tmp_path / "out" / "run.json").exists():  # the main one may be behind
                time.sleep(0.01)
            raise InputError("a sentence that won't do")
        return plain(*args)

    monkeypatch.setattr(Gating, "answer", refusing)
    monkeypatch.delenv("ANI_TRACEBACK", raising=False)
    command = ["eval", "--model", chat_model, "--adapter", tiny_adapter, "--tasks", "gating", "--limit", 4]
    monkeypatch.setattr(sys, "argv", ["ani", *map(str, command), "--out", str(tmp_path / "out")])
    assert together(2, lambda _: cli.main()) == [2, 2]
    assert capfd.readouterr().err == "error: a sentence that won't do\n"
    assert [path.name for path in (tmp_path / "out").glob("*")] == ["run.json"]


def test_an_output_that_cannot_be_written_is_met_before_the_work(
    evaluated: Evaluate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Gating, "answer", None)
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        evaluated(tmp_path / "file" / "out", "gating", limit=1)


def test_vllm_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Captured) -> None:
    monkeypatch.setattr(sys, "argv", ["ani", "eval", "--backend", "vllm", "--processes", "2", "--out", str(tmp_path)])
    with pytest.raises(SystemExit, match="2"):
        cli.main()
    assert "vLLM spreads its work itself" in capfd.readouterr().err


def test_the_launcher_gives_the_exit_code_and_adds_no_sentence(capfd: Captured) -> None:
    assert forked(lambda: sys.exit(launch(["probe"], processes=2))) == 2
    assert capfd.readouterr() == ("", "error: Missing option '--out'.\n")
