"""The program `coupledqk`, and `python -m coupledqk`."""

from .signals import end_on_signals


def main() -> None:
    with end_on_signals():
        from .cli import main as run  # imported here, so that signals also end the program during the import

        run()


if __name__ == "__main__":
    main()
