"""The cache folder of `datasets`, for data sets of the hub and the tokens of large ones."""

import errno
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import datasets
import pyarrow as pa

from smoothtune.errors import OutputError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


@contextmanager
def cache_is_intact() -> Iterator[None]:
    """Raise `OutputError` where rows that were read before cannot be read from the cache."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        frames = traceback.extract_tb(error.__traceback__)
        if not any(frame.name == "as_dataset" for frame in frames):  # it reads the cache alone
            raise
        raise OutputError(
            f"{datasets.config.HF_DATASETS_CACHE}, the cache folder of datasets, holds a damaged "
            f"file ({error}): remove that folder, and run the same command again"
        ) from error


@contextmanager
def cache_with_room() -> Iterator[None]:
    """Raise `OutputError` where the cache is full, or may not be written."""
    try:
        yield
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, OSError) and cause.errno in FULL:
                raise OutputError(
                    f"{datasets.config.HF_DATASETS_CACHE}, the cache folder of datasets, cannot be "
                    f"written: {cause.strerror}; make room, or set HF_DATASETS_CACHE to a folder "
                    "with room, and run the same command again"
                ) from error
            cause = cause.__cause__ or cause.__context__
        raise
