"""Paths of models."""

import os
from pathlib import Path

MODELS = "SMOOTHTUNE_MODELS"
"""Environment variable: a folder of model folders, in which names of models are looked up."""


def resolve_model_path(name: str) -> str:
    """The folder of a model that the folder of models has; a path, or any other name, as it is."""
    folder = Path(os.path.expanduser(os.environ.get(MODELS, ""))) / name
    is_looked_up = os.environ.get(MODELS) and not os.path.exists(os.path.expanduser(name))
    return str(folder) if is_looked_up and os.path.isdir(folder) else name


def is_on_the_hub(name: str) -> bool:
    """Whether a model is neither minilm nor a folder of this machine."""
    return name != "minilm" and not os.path.exists(os.path.expanduser(resolve_model_path(name)))
