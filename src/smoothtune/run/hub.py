"""Uploading a finished model folder to the hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import huggingface_hub
from rich.console import Console

from smoothtune.config.run import RunConfig
from smoothtune.console import quiet, say
from smoothtune.errors import OutputError
from smoothtune.files import RESULT


def push(config: RunConfig, result: dict[str, Any], console: Console) -> None:
    """Upload the model, its card and ``result.json``, if the run says so; nothing else.

    Args:
        config: the run.
        result: the content of ``result.json``, with the names of the files.
        console: gets the address.

    Raises:
        OutputError: the hub does not take it; the folder on disk is complete.
    """
    if not config.push_to_hub:
        return
    folder = Path(config.output_dir)
    name = config.hub_model_id or folder.resolve().name
    try:
        with quiet():
            repository = huggingface_hub.create_repo(
                name, private=config.hub_private_repo, exist_ok=True
            )
            huggingface_hub.upload_folder(
                repo_id=repository.repo_id,
                folder_path=folder,
                allow_patterns=[*result["files"], RESULT],
                commit_message="Model trained with smoothtune",
            )
    except Exception as error:  # of the network, of rights, of names
        raise OutputError(
            f"{folder} is complete, but could not be uploaded to {name}: {error}; log in with "
            "`hf auth login` and give the same command again, which only uploads"
        ) from error
    say(console, f"uploaded to {repository}")
