"""``python -m softperm``: the command line."""

from softperm.cli import main

if __name__ == "__main__":
    main()
