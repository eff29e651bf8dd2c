"""A small template with the code interpreter: kernels of Python and bash that were fetched before, so that its build needs no network."""
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

from packages import TOP, kernel_packages

CODE = os.environ.get("HUTCH_CODE_BIN", str(TOP / "build/hutch-code"))
READY = "curl -sf http://127.0.0.1:49999/health"
DOCKERFILE = """FROM base
COPY lib /usr/local/lib/
COPY code /opt/code/
COPY bin /usr/local/bin/
RUN ldconfig
USER user
WORKDIR /home/user
CMD ["/usr/local/bin/hutch-code-start"]
"""


def copy_libraries(where):
    """What hutch-code is linked with. The template has the C library of the same Debian."""
    for name, path in re.findall(r"^\s*(\S+) => (/\S+)", subprocess.run(["ldd", CODE], text=True, capture_output=True, check=True).stdout, re.M):
        if not re.match(r"lib(c|m|pthread|resolv)\.so", name):
            shutil.copy(path, where / name)


def build_code_template(daemon, name):
    """None, or why it cannot be built."""
    kernels, why = kernel_packages()
    if not kernels:
        return f"kernels cannot be installed from PyPI: {' '.join(why.split())[-200:]}"
    with tempfile.TemporaryDirectory(prefix="hutch-code-context-") as folder:
        context = pathlib.Path(folder)
        (context / "lib").mkdir()
        (context / "bin").mkdir()
        copy_libraries(context / "lib")
        shutil.copy(CODE, context / "bin/hutch-code")
        shutil.copy(TOP / "share/templates/code-interpreter/start", context / "bin/hutch-code-start")
        shutil.copytree(kernels, context / "code", symlinks=True, ignore=shutil.ignore_patterns("__pycache__", "pip", "debugpy"))
        (context / "Dockerfile").write_text(DOCKERFILE)
        daemon.cli("template", "build", "-t", name, "--memory", "1G", "--ready", READY, folder)
    return None
