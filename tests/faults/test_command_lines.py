"""Every command line is accepted, or refused with a one-line error."""

from command_lines import fuzz_command_lines
from samples import Samples


def test_generated_command_lines_are_accepted_or_refused_in_one_line(samples: Samples) -> None:
    tally = fuzz_command_lines(samples, count=400)
    assert tally.failures == [], tally.failures[0]
    assert tally.tried == 400
    assert tally.ends["without effect"] > 20
    assert tally.ends["reported"] > 100
