"""From a recipe to a trained adapter."""
