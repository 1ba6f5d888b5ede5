"""Where models lie."""

import os
from pathlib import Path

MODELS = "SMOOTHTUNE_MODELS"
"""Environment variable: a folder of model folders, in which names of models are looked up."""


def model_place(name: str) -> str:
    """The folder of a model that the folder of models has; a path, or any other name, as it is.

    Args:
        name: a local folder, the name of one in the folder of models, or a hub id.
    """
    folder = Path(os.path.expanduser(os.environ.get(MODELS, ""))) / name
    at_hand = os.environ.get(MODELS) and not os.path.exists(os.path.expanduser(name))
    return str(folder) if at_hand and os.path.isdir(folder) else name


def is_on_the_hub(name: str) -> bool:
    """Whether a model is neither minilm nor a folder of this machine."""
    return name != "minilm" and not os.path.exists(os.path.expanduser(model_place(name)))
