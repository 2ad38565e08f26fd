"""A Space on the Hugging Face hub: the playground's page. ADAPTER and MODEL, variables of the Space, name others."""

import os

from ani.evaluation.model_spec import adapted_model, model_and_adapter
from ani.playground import build

MODEL = os.environ.get("MODEL", "HuggingFaceTB/SmolLM2-135M-Instruct")
ADAPTER = os.environ.get("ADAPTER", "smollm2-calculator")
page = build(*adapted_model(*model_and_adapter(MODEL, ADAPTER)))

if __name__ == "__main__":
    page.launch()
