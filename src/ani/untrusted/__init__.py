"""What files that others made may hold, each kind judged before anything is built by it.

`text` reads JSON, JSON lines and YAML, `folder` judges links, pickles, digests and safetensors, `peft` what an adapter
may tell PEFT, and `model` a model's directory. What is refused raises `InputError` with one sentence.
"""
