"""coupledqk doctor"""

import json
import sys
from dataclasses import asdict, dataclass

from ..terminal import wrapped

MARKS = {"ok": "✓", "absent": "–", "problem": "✗"}


@dataclass(frozen=True)
class Doctor:
    """Check this environment: packages, extras, GPU, Triton, folders, tokenizer, the speed of matrix products.

    Each line is the result of one check: ✓ for working, – for optional and not available, ✗ for a problem, with advice on how
    to solve it. The exit code is 1 if there is a problem.

    Try it:

        coupledqk doctor
        coupledqk doctor --json
    """

    json: bool = False
    """Print JSON instead of text."""

    def run(self) -> None:
        from ..doctor import examine

        found = []
        for finding in examine():
            found.append(finding)
            if not self.json:
                print(wrapped(f"  {MARKS[finding.state]} {finding.name:<17} {finding.text}"), flush=True)
        if self.json:
            print(json.dumps([asdict(finding) for finding in found], indent=2))
        if any(finding.state == "problem" for finding in found):
            sys.exit(1)
