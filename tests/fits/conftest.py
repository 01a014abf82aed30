"""Makes the helpers beside the tests, and those of validation, importable."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "validation")]
