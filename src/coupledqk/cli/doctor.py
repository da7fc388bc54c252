"""coupledqk doctor"""

import json
import sys
from dataclasses import asdict, dataclass

from ..terminal import wrapped

MARKS = {"ok": "✓", "absent": "–", "problem": "✗"}


@dataclass(frozen=True)
class Doctor:
    """Check this environment: packages, extras, GPU, Triton, folders, tokenizer, the speed of matrix products.

    Each line is one check: ✓ works, – is optional and not available, ✗ is a problem, with advice. The exit code is 1 if
    there is a problem.

    Try it:

        coupledqk doctor
        coupledqk doctor --json
    """

    json: bool = False
    """Print JSON instead of lines."""

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
