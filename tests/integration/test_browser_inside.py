"""A browser inside: Chromium's own sandbox needs namespaces that a sandbox has not, and the flag that docs/recipes/vscode.md names is enough."""
import shutil

from hutch_test import check_equal, check_in, skip
from node_client import create, sh
from shared import shared_node

PAGE = "--headless --disable-gpu --user-data-dir=/tmp/profile --dump-dom 'data:text/html,<p>inside</p>'"


def test_chromium():
    "Chromium runs inside with --no-sandbox; without it it says that no sandbox is usable, because user namespaces are closed"
    if not shutil.which("chromium"):
        skip("chromium is not installed")
    with shared_node() as d:
        b = create(d, templateID="host")
        r = sh(d, b, f"chromium {PAGE} 2>&1")
        check_in("No usable sandbox", r.text, r)
        r = sh(d, b, f"chromium --no-sandbox {PAGE} 2>/dev/null")
        check_equal(r.code, 0, r)
        check_in("<p>inside</p>", r.text, r)
