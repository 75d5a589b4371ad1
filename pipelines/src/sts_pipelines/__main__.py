"""`python -m sts_pipelines` is the command `sts`."""

import sys

from sts_pipelines.cli.main import main

sys.exit(main())
