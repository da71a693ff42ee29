"""`python -m tenure`: the command line, for environments in which `tenure` is not on the path."""

from tenure.cli.main import main

if __name__ == "__main__":
    main()
