"""GSM8K, MATH and MMLU for lm-evaluation-harness, with the paper's prompts.

The YAML files hold the prompts (paper, "Evaluation Prompts"), word for word, and the settings; `data` reads the
questions and `judging` judges. `ani.evaluation.tasks.benchmarks` runs them, and so does lm-evaluation-harness alone:

    lm_eval --include_path src/ani/evaluation/benchmarks --tasks ani_gsm8k --apply_chat_template ...
        [--metadata '{"data": "a directory, a JSONL file or a hub name"}']
"""
