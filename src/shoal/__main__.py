"""`python -m shoal` is the `shoal` command."""

from __future__ import annotations

import sys

from shoal.cli import main

sys.exit(main())
