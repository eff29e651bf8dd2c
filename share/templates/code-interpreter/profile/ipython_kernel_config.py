# Read by ipykernel at its start: /opt/code is its prefix.
import os
import sys

sys.path.append(os.path.dirname(os.path.abspath(__file__)))
c = get_config()  # noqa: F821
c.IPKernelApp.extensions = ["hutch_code"]
c.InteractiveShell.colors = "nocolor"
c.PlainTextFormatter.max_seq_length = 0  # lists are shown whole
