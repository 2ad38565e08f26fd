"""From a recipe to a trained adapter; knows nothing about evaluation or reports."""
