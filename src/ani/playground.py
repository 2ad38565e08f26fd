"""`ani playground`: a web page with the gate's decisions and two answers.

Events run one after another, because the gates are forced in the model itself.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from itertools import chain
from socket import gethostname
from typing import Any

import gradio as gr
import psutil
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ani.chat import around_message
from ani.errors import InputError
from ani.evaluation.engines import TransformersEngine
from ani.injection.decisions import NumberDecision, gate_view
from ani.injection.inspection import forced_gates, inspect, without_adapter
from ani.injection.model_parts import ani_module
from ani.serving.checkpoint import merged_method

GATES = {"as learnt": None, "open": True, "closed": False}
EXAMPLE = "Room 505 has a capacity of 10 people. How many can be in it?"
MOST_NEW_TOKENS = 512
LONGEST_TEXT = 20_000
"""Characters."""


def build(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> gr.Blocks:
    """The page for a model with ANI attached and its tokenizer; raises InputError if the model has no ANI module."""
    gated = ani_module(model).gate is not None

    def view(text: str, gates: str) -> str:
        with _shown_errors(), forced_gates(model, GATES[gates]):
            found = decisions(model, tokenizer, text)
        return gate_view(text, found, gated, GATES[gates] is not None)

    def both(text: str, gates: str, max_new_tokens: int) -> tuple[str, str]:
        with _shown_errors():
            with without_adapter(model):
                base = answer(model, tokenizer, text, max_new_tokens)
            with forced_gates(model, GATES[gates]):
                return base, answer(model, tokenizer, text, max_new_tokens)

    one_at_a_time: dict[str, Any] = {"concurrency_limit": 1, "concurrency_id": "model"}
    merged = merged_method(model.config) is not None
    page = gr.Blocks(title="ANI playground", analytics_enabled=False)
    with page:
        gr.Markdown("# ANI playground")
        text = gr.Textbox(EXAMPLE, label="Text", lines=3, max_length=LONGEST_TEXT)
        gates = gr.Radio(
            list(GATES),
            value="as learnt",
            label="Gates",
            info=None if gated else "This method has no gate: as learnt, it injects every number.",
        )
        shown = gr.HTML(elem_id="gates")
        limit = gr.Slider(1, MOST_NEW_TOKENS, value=64, step=1, label="Maximum number of new tokens")
        button = gr.Button("Answer", variant="primary")
        with gr.Row():
            base = gr.Textbox(
                label="Merged model without injection (LoRA is part of its weights)" if merged else "Base model",
                lines=6,
                elem_id="base",
            )
            ours = gr.Textbox(label="ANI, with the gates above", lines=6, elem_id="ani")
        at_once: dict[str, Any] = {"trigger_mode": "always_last", "show_progress": "hidden", **one_at_a_time}
        gr.on([page.load, text.change, gates.change], view, [text, gates], shown, **at_once)
        button.click(both, [text, gates, limit], [base, ours], **one_at_a_time)
        # In the browser, so that an outdated answer disappears at once even while the model is busy.
        asked = [text.change, gates.change, limit.change]
        gr.on(asked, None, None, [base, ours], js="() => ['', '']")
    return page


def launch(page: gr.Blocks, host: str, port: int) -> str:
    """Serve the page in the background and return its address; raises InputError if the port isn't free."""
    try:
        _, url, _ = page.launch(
            server_name=host,
            server_port=port,
            share=False,
            ssr_mode=False,
            num_workers=0,  # which would listen at other ports
            max_file_size=0,
            quiet=True,
            prevent_thread_lock=True,
            app_kwargs={"middleware": [Middleware(TrustedHostMiddleware, _hosts(host))]},
            footer_links=[],
            theme=gr.themes.Default(font=["system-ui", "sans-serif"], font_mono=["monospace"]).set(
                # A contrast of 4.5 to 1 at least, in both of the theme's modes.
                block_info_text_color="*neutral_600",
                block_info_text_color_dark="*neutral_300",
                body_text_color_subdued="*neutral_600",
                body_text_color_subdued_dark="*neutral_300",
                button_primary_background_fill="*primary_700",
                button_primary_background_fill_dark="*primary_700",
            ),
        )
    except OSError as error:
        raise InputError(f"{host}:{port} can't be listened on; name another --port or --host") from error
    return str(url)


def _hosts(host: str) -> list[str]:
    """The host names that a request to `host` may have; others are refused, because a site could let its own name
    point here (DNS rebinding)."""
    addresses = (each.address for each in chain.from_iterable(psutil.net_if_addrs().values()))
    return [host, "localhost", *([gethostname(), *addresses] if host in ("0.0.0.0", "::") else [])]


def decisions(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, text: str) -> list[NumberDecision]:
    """The decision about each number of `text` in the prompt of `answer`."""
    _check_length(model, tokenizer, text)
    return inspect(model, tokenizer, text, around=around_message(tokenizer))


def answer(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, text: str, max_new_tokens: int) -> str:
    """The model's greedy answer to `text` as a user's message. Raises InputError if the text is blank or too long."""
    if not text.strip():
        raise InputError("there is no text to answer; type one")
    _check_length(model, tokenizer, text)
    (written,) = TransformersEngine(model, tokenizer).texts([[{"role": "user", "content": text}]], max_new_tokens)
    return written


def _check_length(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, text: str) -> None:
    if len(text) > LONGEST_TEXT:
        raise InputError(f"the text has {len(text):,} characters, and {LONGEST_TEXT:,} are read at most: shorten it")
    length = len(tokenizer(text.join(around_message(tokenizer)), add_special_tokens=False)["input_ids"])
    most = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if most is not None and length >= most:
        raise InputError(f"the text has {length:,} tokens with its chat template, the model reads {most:,}: shorten it")


@contextmanager
def _shown_errors() -> Iterator[None]:
    try:
        yield
    except InputError as error:
        raise gr.Error(escape(str(error)), print_exception=False) from error
