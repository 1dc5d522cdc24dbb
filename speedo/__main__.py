"""`python -m speedo` is the command `speedo`."""

from speedo.cli import main

if __name__ == "__main__":
    main()
