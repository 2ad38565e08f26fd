"""Checks files from others (recipes, data, adapters, models) before anything is built from them.

`text` reads JSON, JSON lines and YAML, `folder` judges links, pickles, digests and safetensors, `peft` what an adapter
may tell PEFT, and `model` a model's directory. What is refused raises `InputError` with one sentence.
"""
