"""Imported by the commands, and by the server of their processes, before heavy libraries.

On CPUs with bfloat16 arithmetic bitsandbytes, which peft imports wherever it is installed, advises
in every process to install another package; no command needs that.
"""

import logging

logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
