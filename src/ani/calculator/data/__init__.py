"""Generated texts with calculations: the gate is fitted on their training split and measured on their test split."""
