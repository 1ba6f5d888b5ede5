from helpers.study_files import inputs, write  # noqa: F401
