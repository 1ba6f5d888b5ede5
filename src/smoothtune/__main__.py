"""`python -m smoothtune` is `smoothtune`."""

from smoothtune.cli import main

if __name__ == "__main__":
    main()
