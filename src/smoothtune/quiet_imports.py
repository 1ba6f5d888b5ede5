"""Imported with the package, before heavy libraries.

On CPUs with bfloat16 arithmetic bitsandbytes, which peft imports wherever it is installed, advises
in every process to install another package, even where nothing is stored in 4 bits.
"""

import logging

logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
